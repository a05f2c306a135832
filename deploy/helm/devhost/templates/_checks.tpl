{{- /*
Fails for what devhost refuses in the configuration of an instance and a schema cannot say: a name that
is there twice, an unknown variable, and what `allow` does not allow, unless `extraArgs` or `extraEnv`
may. What several values get wrong together only `devhost validate` and devhost itself know.
*/}}
{{- define "devhost.checkConfig" -}}
{{- $place := printf "config of %s" .name }}
{{- $names := list }}
{{- $more := printf "%s %s" (toRawJson .values.extraArgs) (toRawJson .values.extraEnv) }}
{{- $judged := not (regexMatch "--allow-|DEVHOST_ALLOW_" $more) }}
{{- range $resource := default list .config.resources }}
{{- if has $resource.name $names }}
{{- fail (printf "%s: duplicate resource %q" $place $resource.name) }}
{{- end }}
{{- $names = append $names $resource.name }}
{{- include "devhost.checkVariables" (dict "resource" $resource "place" $place) }}
{{- if $judged }}
{{- $place := printf "%s: %s" $place $resource.name }}
{{- include "devhost.checkRights" (dict "resource" $resource "place" $place "allow" $.values.allow) }}
{{- if and (include "devhost.usesDra" (dict "resource" $resource "config" $.config)) (not $.values.dra.enabled) }}
{{- fail (printf "%s: Dynamic Resource Allocation needs dra.enabled" $place) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Fails for a variable that no source of the resource can set. */}}
{{- define "devhost.checkVariables" -}}
{{- $text := toRawJson .resource | replace "$$" "" }}
{{- $names := list "id" "name" "path" "realpath" "index" "count" "resource" "nodeName" }}
{{- $roles := list }}
{{- range $source := .resource.sources }}
{{- if kindIs "map" $source }}
{{- $nodes := list $source.as $source.sysfs }}
{{- if or $source.usb $source.pci $source.sysfs }}
{{- $roles = concat $roles (list "usb" "pci" "attr") }}
{{- $names = concat $names (list "subsystem" "place" "parent" "driver" "syspath" "byId" "byPath") }}
{{- end }}
{{- range $kind := list $source.usb $source.pci $source.sysfs }}
{{- if kindIs "map" $kind }}
{{- $nodes = append $nodes $kind.subsystem }}
{{- $nodes = kindIs "slice" $kind.node | ternary $kind.node (list $kind.node) | concat $nodes }}
{{- end }}
{{- end }}
{{- range $nodes }}
{{- $node := kindIs "map" . | ternary . (dict "subsystem" .) }}
{{- if kindIs "string" $node.subsystem }}
{{- $roles = append $roles (regexReplaceAll "/.*" $node.subsystem "") }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- $groups := regexFindAll "\\(\\?P?<\\w+>" $text -1 | join " " | replace "P<" "<" }}
{{- range $variable := regexFindAll "\\$\\{[A-Za-z_][A-Za-z0-9_.]*\\}" $text -1 }}
{{- $variable = trimAll "${}" $variable }}
{{- $known := has $variable $names }}
{{- $known = or $known (has (regexReplaceAll "\\..*" $variable "") $roles | and (contains "." $variable)) }}
{{- if not (or $known (contains (printf "(?<%s>" $variable) $groups)) }}
{{- fail (printf "%s: %s: unknown variable ${%s}" $.place $.resource.name $variable) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Fails for what a resource uses and `allow` does not allow. */}}
{{- define "devhost.checkRights" -}}
{{- $allow := .allow }}
{{- $allocate := default dict .resource.allocate }}
{{- $checks := default list .resource.health }}
{{- if and (kindIs "map" $checks) (hasKey $checks "checks") }}
{{- $checks = $checks.checks }}
{{- end }}
{{- range concat (default list .resource.preStart) (kindIs "slice" $checks | ternary $checks (list $checks)) }}
{{- if and (kindIs "map" .) (not $allow.exec) (or (hasKey . "run") (hasKey . "mode") (hasKey . "exec")) }}
{{- fail (printf "%s: commands and modes need allow.exec" $.place) }}
{{- end }}
{{- end }}
{{- $nodes := list "/dev" "/dev/*" }}
{{- range $allow.devices }}
{{- if contains "/" . }}
{{- $nodes = append $nodes . }}
{{- end }}
{{- end }}
{{- range $key, $globs := dict "mounts" $allow.paths "devices" $nodes }}
{{- range $entry := default list (index $allocate $key) }}
{{- $path := kindIs "map" $entry | ternary $entry (dict "hostPath" $entry) | dig "hostPath" "" }}
{{- $plain := clean $path }}
{{- $ways := list $plain (regexReplaceAll "^/var/(run|lock)/" $plain "/run/${1}/" | replace "/run/run/" "/run/") }}
{{- $allowed := contains "${" $path | ternary (ne (len $globs) 0) (include "devhost.matches" (dict "texts" $ways "globs" $globs)) }}
{{- if not $allowed }}
{{- fail (printf "%s: %s is not in allow.%s" $.place $path (eq $key "mounts" | ternary "paths" $key)) }}
{{- end }}
{{- if and (eq $key "devices") (has $plain (list "/dev/mem" "/dev/kmem" "/dev/port")) (not (has $plain $allow.devices)) }}
{{- fail (printf "%s: %s gives access to memory; allow.devices does not name it" $.place $path) }}
{{- end }}
{{- end }}
{{- end }}
{{- $variables := list }}
{{- range $name, $_ := $allocate.env }}
{{- if regexMatch "^(NVIDIA_|ASCEND_).*$|_VISIBLE_DEVICES$" $name }}
{{- $variables = append $variables $name }}
{{- end }}
{{- end }}
{{- range $key, $texts := dict "cdi" (concat $variables (default list $allocate.cdi)) "annotations" (keys (default dict $allocate.annotations)) }}
{{- $globs := index $allow $key }}
{{- range $text := $texts }}
{{- $allowed := contains "${" $text | ternary (or $globs (eq $key "annotations")) (include "devhost.matches" (dict "texts" (list $text) "globs" $globs)) }}
{{- if not $allowed }}
{{- fail (printf "%s: %s is not in allow.%s" $.place $text $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Whether one of the globs, in which `*` also matches '/', matches one of the texts: else empty. */}}
{{- define "devhost.matches" -}}
{{- range $glob := .globs }}
{{- $regex := regexQuoteMeta $glob | replace "\\*" ".*" | replace "\\?" "." | replace "\\[" "[" | replace "\\]" "]" | replace "[!" "[^" }}
{{- range $.texts }}
{{- if regexMatch (printf "^(%s)$" $regex) . }}yes{{ end }}
{{- end }}
{{- end }}
{{- end }}
