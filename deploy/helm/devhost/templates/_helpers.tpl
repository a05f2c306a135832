{{- define "devhost.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* Leaves room for the name of a profile (20 characters) in a label (63 characters). */}}
{{- define "devhost.fullname" -}}
{{- $name := include "devhost.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 42 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 42 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 42 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "devhost.selector" -}}
app.kubernetes.io/name: {{ include "devhost.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "devhost.labels" -}}
{{ include "devhost.selector" . }}
{{- with .Chart.AppVersion }}
app.kubernetes.io/version: {{ . | quote }}
{{- end }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "devhost.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "devhost.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "devhost.image" -}}
{{- $repository := .Values.image.repository }}
{{- with .Values.image.registry }}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) $repository }}
{{- end }}
{{- $registry := regexFind "^[^/]*/" $repository | trimSuffix "/" }}
{{- $named := or (contains "." $registry) (contains ":" $registry) (eq $registry "localhost") }}
{{- if not (or $named .Values.image.digest (eq .Values.image.pullPolicy "Never")) }}
{{- fail (printf "image: nodes would search for %q in registries of their own choice; set image.registry, such as docker.io/ACCOUNT, or image.digest, or image.pullPolicy to Never for an image that is already on the nodes" $repository) }}
{{- end }}
{{- with .Values.image.digest }}
{{- printf "%s@%s" $repository . }}
{{- else }}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- /*
The DaemonSets, as a JSON list of {name, component, values, config, profile}: one for the chart's own
`config`, and one for each profile. `values` are the chart's values merged with the profile's.
*/}}
{{- define "devhost.instances" -}}
{{- range $key := list "allow" "cdi" "config" "deviceAccess" "dra" "hostRoot" "http" "image" "kubelet" "log" "metrics" "networkPolicy" "podAnnotations" "podLabels" "probes" "securityContext" "serviceAccount" }}
{{- if not (kindIs "map" (index $.Values $key)) }}
{{- fail (printf "%s: has no value; remove the key, or set what belongs below it" $key) }}
{{- end }}
{{- end }}
{{- if eq (toString .Values.http.port) (toString .Values.http.statusPort) }}
{{- fail (printf "http: port and statusPort are both %v" .Values.http.port) }}
{{- end }}
{{- $fullname := include "devhost.fullname" . }}
{{- $keys := list "hostPaths" "hostRoot" "allow" "deviceAccess" "cdi" "kubelet" "log" "podAnnotations" "podLabels" "podSecurityContext" "securityContext" "resources" "priorityClassName" "tolerations" "nodeSelector" "affinity" "updateStrategy" "terminationGracePeriodSeconds" "probes" "command" "args" "extraArgs" "extraEnv" "extraVolumes" "extraVolumeMounts" }}
{{- $given := dict }}
{{- range $keys }}
{{- $_ := set $given . (index $.Values .) }}
{{- end }}
{{- $values := dict }}
{{- include "devhost.merge" (dict "own" $values "given" $given) }}
{{- $instances := list }}
{{- if or (not .Values.profiles) .Values.config.resources .Values.config.existingConfigMap }}
{{- range $key := list "version" "resources" }}
{{- if not (or $.Values.config.existingConfigMap (hasKey $.Values.config $key)) }}
{{- fail (printf "config.%s: has no value; remove the key, or set it" $key) }}
{{- end }}
{{- end }}
{{- $base := deepCopy $values }}
{{- $_ := set $base "affinity" (include "devhost.affinity" . | fromJson) }}
{{- $instances = append $instances (dict "name" $fullname "component" "default" "values" $base "config" .Values.config "profile" "") }}
{{- end }}
{{- $seen := list "default" "test" }}
{{- range $profile := .Values.profiles }}
{{- if has $profile.name $seen }}
{{- fail (printf "profiles: the name %q is already in use" $profile.name) }}
{{- end }}
{{- $seen = append $seen $profile.name }}
{{- $own := deepCopy $values }}
{{- include "devhost.merge" (dict "own" $own "given" (omit $profile "name" "config" "affinity")) }}
{{- if hasKey $profile "affinity" }}
{{- $_ := set $own "affinity" $profile.affinity }}
{{- end }}
{{- $instances = append $instances (dict "name" (printf "%s-%s" $fullname $profile.name) "component" $profile.name "values" $own "config" $profile.config "profile" $profile.name) }}
{{- end }}
{{- range $instances }}
{{- if and .config.existingConfigMap .config.resources }}
{{- fail (printf "%s: config.resources and config.existingConfigMap %s cannot be combined; remove one of them" .name .config.existingConfigMap) }}
{{- end }}
{{- $_ := set .values "hostPaths" (include "devhost.hostPaths" . | fromJsonArray) }}
{{- include "devhost.checkAllowed" . }}
{{- $driver := printf "%s-%s" $.Values.dra.driver .profile | trimSuffix "-" }}
{{- $driver = $.Values.dra.driver | empty | ternary .name $driver }}
{{- $_ := set .values "dra" (merge (dict "driver" $driver) $.Values.dra) }}
{{- if and (eq $.Values.dra.backend "dra") (not .config.backend) }}
{{- $_ := set . "config" (merge (dict "backend" "dra") .config) }}
{{- end }}
{{- include "devhost.checkDra" (dict "instance" . "capabilities" $.Capabilities) }}
{{- end }}
{{- toJson $instances }}
{{- end }}

{{- /*
Merges a map into another, recursively and in place; null removes a key, and other values than maps
are replaced.
*/}}
{{- define "devhost.merge" -}}
{{- $own := .own }}
{{- range $key, $value := .given }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $own $key }}
{{- else if kindIs "map" $value }}
{{- if not (kindIs "map" (index $own $key)) }}
{{- $_ := set $own $key dict }}
{{- end }}
{{- include "devhost.merge" (dict "own" (index $own $key) "given" $value) }}
{{- else }}
{{- $_ := set $own $key $value }}
{{- end }}
{{- end }}
{{- end }}

{{- /* An instance's hostPaths, normalized, as JSON. Each has its own mount. */}}
{{- define "devhost.hostPaths" -}}
{{- $name := .name }}
{{- $mounted := include "devhost.system" .values | fromJsonArray }}
{{- $paths := list }}
{{- if not .values.hostRoot.enabled }}
{{- range $given := .values.hostPaths }}
{{- $path := clean $given }}
{{- if eq $path "/" }}
{{- fail (printf "hostPaths of %s: %q is the whole host; set hostRoot.enabled instead" $name $given) }}
{{- end }}
{{- if eq $path "/sys" }}
{{- fail (printf "hostPaths of %s: %q contains the cgroups of the node, which may be writable; use the subdirectory that is needed" $name $given) }}
{{- end }}
{{- if has $path (concat $mounted $paths) }}
{{- fail (printf "hostPaths of %s: %q is %s, which is already mounted; remove it" $name $given $path) }}
{{- end }}
{{- $paths = append $paths $path }}
{{- end }}
{{- end }}
{{- toJson $paths }}
{{- end }}

{{- /* The system's directories that an instance mounts, from its values, as JSON. */}}
{{- define "devhost.system" -}}
{{- $mounted := concat (list "/dev") (include "devhost.sysfs" . | fromJsonArray) }}
{{- if or .allow.paths .allow.devices }}
{{- $mounted = append $mounted "/proc" }}
{{- end }}
{{- toJson $mounted }}
{{- end }}

{{- /* The path before the first wildcard or variable of a path: a directory, if there is one. */}}
{{- define "devhost.literal" -}}
{{- $literal := regexFind "^[^*?$\\[]*" . }}
{{- clean (default "/" (eq $literal . | ternary $literal (regexReplaceAll "[^/]*$" $literal ""))) }}
{{- end }}

{{- /* Whether an instance with these `values` sees a `path`: a text that is empty if it does not. */}}
{{- define "devhost.sees" -}}
{{- $sees := .values.hostRoot.enabled }}
{{- $path := printf "%s/" (trimSuffix "/" .path) }}
{{- range concat (include "devhost.system" .values | fromJsonArray) .values.hostPaths }}
{{- $sees = or $sees (hasPrefix (printf "%s/" .) $path) }}
{{- end }}
{{- $sees | ternary "yes" "" }}
{{- end }}

{{- /* Fails if an instance allows what it does not see: links there could lead anywhere. */}}
{{- define "devhost.checkAllowed" -}}
{{- $instance := . }}
{{- range $key := list "paths" "devices" }}
{{- range $glob := index $instance.values.allow $key }}
{{- $path := include "devhost.literal" $glob }}
{{- /* A class of devices is a word. */}}
{{- if and (or (eq $key "paths") (contains "/" $glob)) (not (include "devhost.sees" (dict "values" $instance.values "path" $path))) }}
{{- $how := eq $path "/" | ternary "set hostRoot.enabled, or a narrower path" (printf "add %s, or a parent directory that all nodes have, to hostPaths" $path) }}
{{- fail (printf "allow.%s of %s: %q is not below a mounted directory, so devhost could not check what it allows; %s" $key $instance.name $glob $how) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Fails if an instance lacks what Dynamic Resource Allocation needs. */}}
{{- define "devhost.checkDra" -}}
{{- $values := .instance.values }}
{{- if $values.dra.enabled }}
{{- if not (.capabilities.APIVersions.Has "resource.k8s.io/v1") }}
{{- fail "dra.enabled: the cluster does not have resource.k8s.io/v1; devhost needs Kubernetes 1.36 or newer for it" }}
{{- end }}
{{- if not $values.cdi.enabled }}
{{- fail (printf "dra.enabled: %s needs cdi.enabled" .instance.name) }}
{{- end }}
{{- /* The path of a Unix socket has at most 107 bytes, of which devhost's names of sockets take 37. */}}
{{- if gt (add (len (trimSuffix "/" $values.kubelet.rootDir)) (len $values.dra.driver)) 70 }}
{{- fail (printf "dra.driver: the paths of sockets of the driver %s would be too long; set a shorter one" $values.dra.driver) }}
{{- end }}
{{- else if eq $values.dra.backend "dra" }}
{{- fail "dra.backend: dra needs dra.enabled" }}
{{- end }}
{{- end }}

{{- /* The drivers of all instances, as a JSON list, which is also one of CEL. */}}
{{- define "devhost.drivers" -}}
{{- $drivers := list }}
{{- range include "devhost.instances" . | fromJsonArray }}
{{- $drivers = append $drivers .values.dra.driver }}
{{- end }}
{{- toJson $drivers }}
{{- end }}

{{- /* Whether DRA offers a `resource` of a `config` on any node: else empty. */}}
{{- define "devhost.usesDra" -}}
{{- $backend := default .config.backend .resource.backend }}
{{- if or (kindIs "map" $backend) (eq (toString $backend) "dra") }}yes{{ end }}
{{- end }}

{{- /* The name of a resource's DeviceClass, as `devhost deviceclasses` makes it. */}}
{{- define "devhost.className" -}}
{{- $name := regexReplaceAll ".*/" . "" }}
{{- $plain := regexReplaceAll "[^a-z0-9]+" (lower $name) "-" | trimAll "-" }}
{{- if ne $plain $name }}
{{- $plain = printf "%s-%s" $plain (sha256sum . | trunc 10) }}
{{- end }}
{{- printf "%s.%s" $plain (regexReplaceAll "/.*" . "") }}
{{- end }}

{{- /* The name of what is the cluster's own, which no release in another namespace has. */}}
{{- define "devhost.clusterName" -}}
{{- printf "%s.%s" .Release.Namespace (include "devhost.fullname" .) }}
{{- end }}

{{- /*
The affinity of the chart's own DaemonSet, as JSON: that of the values, without the nodes that profiles
select by labels. The labels of a profile are combined with "and", so their negation is an "or": each
label adds a term for every term so far.
*/}}
{{- define "devhost.affinity" -}}
{{- $affinity := deepCopy (default dict .Values.affinity) }}
{{- $node := default dict $affinity.nodeAffinity }}
{{- $required := default dict $node.requiredDuringSchedulingIgnoredDuringExecution }}
{{- $terms := default (list dict) $required.nodeSelectorTerms }}
{{- $excluding := false }}
{{- range $profile := .Values.profiles }}
{{- $selector := dict }}
{{- include "devhost.merge" (dict "own" $selector "given" $profile.nodeSelector) }}
{{- if and $selector (not $profile.affinity) }}
{{- $excluding = true }}
{{- $next := list }}
{{- range $term := $terms }}
{{- range $key, $value := $selector }}
{{- $away := dict "key" $key "operator" "NotIn" "values" (list $value) }}
{{- $expressions := append (default list $term.matchExpressions) $away }}
{{- $next = append $next (set (deepCopy $term) "matchExpressions" $expressions) }}
{{- end }}
{{- end }}
{{- $terms = $next }}
{{- end }}
{{- end }}
{{- if $excluding }}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) }}
{{- $_ := set $affinity "nodeAffinity" $node }}
{{- end }}
{{- toJson $affinity }}
{{- end }}

{{- define "devhost.configMapName" -}}
{{- default .name .config.existingConfigMap }}
{{- end }}

{{- /* The trust flags as variables, for `run` and `validate`. */}}
{{- define "devhost.trustEnv" -}}
{{- range $option, $globs := dict "PATH" .allow.paths "DEVICE" .allow.devices "RESOURCE" .allow.resources "CDI" .allow.cdi "ANNOTATION" .allow.annotations }}
{{- with $globs }}
- name: DEVHOST_ALLOW_{{ $option }}
  value: {{ join " " . | quote }}
{{- end }}
{{- end }}
{{- if .allow.exec }}
- name: DEVHOST_ALLOW_EXEC
  value: "true"
{{- end }}
{{- if .dra.enabled }}
- name: DEVHOST_DRA
  value: "true"
{{- end }}
{{- end }}

{{- /*
The directories of sysfs to mount, as a JSON list. Links between them stay within them. Not all of
/sys: cgroups, debugfs and bpffs are mounted below it, and are writable without recursive read-only
mounts. With `hostRoot` all of /sys is visible, so all of it is made read-only if possible.
*/}}
{{- define "devhost.sysfs" -}}
{{- .hostRoot.enabled | ternary (list "/sys") (list "/sys/block" "/sys/bus" "/sys/class" "/sys/dev" "/sys/devices") | toJson }}
{{- end }}

{{- /*
Mounts below a read-only mount (such as /dev/shm) stay writable unless it is recursive. That excludes
mount propagation, which is not needed here. The field exists since Kubernetes 1.30; its feature gate
is on by default since 1.31.
*/}}
{{- define "devhost.readOnlyRecursively" -}}
readOnly: true
{{- if semverCompare ">=1.31.0-0" .Capabilities.KubeVersion.Version }}
recursiveReadOnly: IfPossible
{{- end }}
{{- end }}

{{- /* The container's security context; without the settings that privileged overrides. */}}
{{- define "devhost.securityContext" -}}
{{- $context := deepCopy .securityContext }}
{{- if .deviceAccess.privileged }}
{{- $context = omit $context "allowPrivilegeEscalation" "capabilities" "seccompProfile" }}
{{- $_ := set $context "privileged" true }}
{{- $selinux := default dict $context.seLinuxOptions }}
{{- if eq (default "" $selinux.type) "container_device_plugin_t" }}
{{- $_ := set $context "seLinuxOptions" (merge (dict "type" "spc_t") $selinux) }}
{{- end }}
{{- end }}
{{- toYaml $context }}
{{- end }}
