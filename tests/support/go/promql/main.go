// Evaluates PromQL expressions over given series with Prometheus' own engine.
//
// promtool tests whole rules, but takes four minutes of two cores to build: it brings the clients
// of every cloud. Reads a request from stdin and writes the response to stdout, both JSON.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

type request struct {
	Series      []series `json:"series"`
	Expressions []string `json:"expressions"`
	Minutes     int      `json:"minutes"` // each expression is evaluated at 0, 1, … minutes
}

type series struct {
	Labels map[string]string `json:"labels"` // with __name__
	Values []*float64        `json:"values"` // at 0, 1, … minutes; null where there is no sample
}

// By expression and minute: the labels of each element of the resulting vector.
type response [][][]labels.Labels

func main() {
	var asked request
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		log.Fatal(err)
	}
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples:    1_000_000,
		Timeout:       time.Minute,
		LookbackDelta: 5 * time.Minute, // Prometheus' default
		Parser:        parser.NewParser(parser.Options{}),
	})
	answer := response{}
	for _, expression := range asked.Expressions {
		vectors := [][]labels.Labels{}
		for minute := range asked.Minutes {
			vectors = append(vectors, evaluate(engine, store(asked.Series), expression, minute))
		}
		answer = append(answer, vectors)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		log.Fatal(err)
	}
}

func evaluate(engine *promql.Engine, from storage.Queryable, expression string, minute int) []labels.Labels {
	at := time.UnixMilli(milliseconds(minute))
	query, err := engine.NewInstantQuery(context.Background(), from, nil, expression, at)
	if err != nil {
		log.Fatal(err)
	}
	defer query.Close()
	vector, err := query.Exec(context.Background()).Vector()
	if err != nil {
		log.Fatal(err)
	}
	found := []labels.Labels{}
	for _, element := range vector {
		found = append(found, element.Metric)
	}
	return found
}

func milliseconds(minute int) int64 { return int64(minute) * time.Minute.Milliseconds() }

// ── the series, as a storage ──

type store []series

func (s store) Querier(_, _ int64) (storage.Querier, error) { return s, nil }

func (s store) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	found := &set{}
	for _, one := range s {
		if of := labels.FromMap(one.Labels); matches(of, matchers) {
			found.all = append(found.all, storage.NewListSeries(of, samples(one.Values)))
		}
	}
	return found
}

func (store) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (store) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (store) Close() error { return nil }

func matches(of labels.Labels, matchers []*labels.Matcher) bool {
	for _, matcher := range matchers {
		if !matcher.Matches(of.Get(matcher.Name)) {
			return false
		}
	}
	return true
}

func samples(values []*float64) []chunks.Sample {
	found := []chunks.Sample{}
	for minute, value := range values {
		if value != nil {
			found = append(found, sample{milliseconds(minute), *value})
		}
	}
	return found
}

type set struct {
	all  []storage.Series
	next int
}

func (s *set) Next() bool                        { s.next++; return s.next <= len(s.all) }
func (s *set) At() storage.Series                { return s.all[s.next-1] }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }

type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
