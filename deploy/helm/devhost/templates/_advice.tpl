{{- /*
The warnings in NOTES for one instance: what its configuration uses and the values do not allow.
*/}}
{{- define "devhost.advice" -}}
{{- $values := .values }}
{{- $globs := list }}
{{- $wanted := list }}
{{- $needs := dict }}
{{- range $resource := default list .config.resources }}
{{- if eq (default "" $resource.inject) "cdi" }}
{{- $_ := set $needs "cdi" true }}
{{- end }}
{{- range $source := $resource.sources }}
{{- if kindIs "string" $source }}
{{- $globs = append $globs $source }}
{{- else if kindIs "map" $source.directory }}
{{- $wanted = append $wanted $source.directory.path }}
{{- else if $source.directory }}
{{- $wanted = append $wanted $source.directory }}
{{- else if $source.glob }}
{{- $paths := $source.glob }}
{{- if kindIs "map" $paths }}
{{- $paths = $paths.paths }}
{{- end }}
{{- $globs = concat $globs (kindIs "string" $paths | ternary (list $paths) $paths) }}
{{- end }}
{{- end }}
{{- range $step := default list $resource.preStart }}
{{- if $step.mode }}
{{- $_ := set $needs "writable" true }}
{{- end }}
{{- with $step.waitFor }}
{{- $globs = append $globs . }}
{{- end }}
{{- end }}
{{- $checks := default list $resource.health }}
{{- if and (kindIs "map" $checks) (not (or (hasKey $checks "exec") (hasKey $checks "file"))) }}
{{- $checks = default list $checks.checks }}
{{- end }}
{{- range $check := kindIs "slice" $checks | ternary $checks (list $checks) }}
{{- if kindIs "string" $check }}
{{- $_ := set $needs "open" true }}
{{- else if $check.file }}
{{- $globs = append $globs $check.file.path }}
{{- end }}
{{- end }}
{{- end }}
{{- range $globs }}
{{- if hasPrefix "/" . }}
{{- $wanted = append $wanted (include "devhost.literal" (printf "%s*" .)) }}
{{- end }}
{{- end }}
{{- $missing := list }}
{{- range $path := $wanted }}
{{- $path = clean $path }}
{{- if not (include "devhost.sees" (dict "values" $values "path" $path)) }}
{{- $missing = append $missing $path }}
{{- end }}
{{- end }}
{{- $advice := list }}
{{- with $missing | uniq | sortAlpha }}
{{- $advice = append $advice (printf "%s uses %s, which is not mounted: nothing will be found there. Add it, or a parent directory that all nodes have, to hostPaths (%s); that edit restarts the pods." $.name (join ", " .) ($.profile | empty | ternary "of the chart" "of the profile")) }}
{{- end }}
{{- if and $needs.cdi (not $values.cdi.enabled) }}
{{- $advice = append $advice (printf "The configuration of %s uses `inject: cdi`, which requires cdi.enabled." .name) }}
{{- end }}
{{- if and (not $values.podResources.enabled) $values.podResources.assumeFree }}
{{- $advice = append $advice (printf "With podResources.assumeFree %s may give a device to a second pod after its resource is renamed: drain the nodes before such an edit, or set podResources.enabled." .name) }}
{{- end }}
{{- if and $needs.writable (not $values.deviceAccess.writable) }}
{{- $advice = append $advice (printf "The configuration of %s changes the mode of nodes, which requires deviceAccess.writable." .name) }}
{{- end }}
{{- if and $needs.open (not $values.deviceAccess.privileged) }}
{{- $advice = append $advice (printf "The configuration of %s checks that devices can be opened; the result is unknown without deviceAccess.privileged." .name) }}
{{- end }}
{{- if $values.deviceAccess.privileged }}
{{- $advice = append $advice (printf "%s is privileged (deviceAccess.privileged): protect its configuration and its image like the nodes themselves." .name) }}
{{- end }}
{{- toJson $advice }}
{{- end }}
