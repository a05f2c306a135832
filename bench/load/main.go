// The kubelet's side of the benchmark, with a clock of its own.
//
// It reads commands from standard input, a JSON object a line, and answers each with a line:
// {"result": …} or {"error": "…"}. One command runs at a time. What a command is given and
// answers is in the type and the function of its name.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
)

const lineMax = 64 << 20 // a configuration of a thousand resources comes in one line

type command struct {
	Do   string          `json:"do"`
	With json.RawMessage `json:"with"`
}

type answer struct {
	Result any    `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`
}

type handler func(json.RawMessage) (any, error)

// On makes a handler of a function with typed arguments.
func on[T any](do func(T) (any, error)) handler {
	return func(raw json.RawMessage) (any, error) {
		var with T
		if err := json.Unmarshal(raw, &with); err != nil {
			return nil, err
		}
		return do(with)
	}
}

func main() {
	// A child ends with the thread that started it, so that thread has to stay.
	runtime.LockOSThread()
	if len(os.Args) == 3 && os.Args[1] == "helper" {
		fail(help(os.Args[2]))
		return
	}
	if len(os.Args) != 2 {
		fail(fmt.Errorf("usage: %s PLUGIN-DIR", os.Args[0]))
	}
	kubelet := newKubelet(os.Args[1])
	fail(kubelet.start(0))
	fail(serve(newGenerator(kubelet).handlers()))
}

func serve(handlers map[string]handler) error {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, lineMax)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		if err := out.Encode(handle(handlers, lines.Bytes())); err != nil {
			return err
		}
	}
	return lines.Err()
}

func handle(handlers map[string]handler, line []byte) answer {
	var one command
	if err := json.Unmarshal(line, &one); err != nil {
		return answer{Error: err.Error()}
	}
	do, known := handlers[one.Do]
	if !known {
		return answer{Error: "unknown command " + one.Do}
	}
	result, err := do(one.With)
	if err != nil {
		return answer{Error: one.Do + ": " + err.Error()}
	}
	return answer{Result: result}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
