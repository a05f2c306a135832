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
{{- range $profile := .Values.profiles }}
{{- $own := deepCopy $values }}
{{- include "devhost.merge" (dict "own" $own "given" (omit $profile "name" "config" "affinity")) }}
{{- if hasKey $profile "affinity" }}
{{- $_ := set $own "affinity" $profile.affinity }}
{{- end }}
{{- $instances = append $instances (dict "name" (printf "%s-%s" $fullname $profile.name) "component" $profile.name "values" $own "config" $profile.config "profile" $profile.name) }}
{{- end }}
{{- range $instances }}
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
The directories of vendors' CDI specs that an instance needs, as a JSON list.
*/}}
{{- define "devhost.specDirs" -}}
{{- $used := and .values.cdi.enabled (not (empty .config.existingConfigMap)) }}
{{- range $resource := .config.resources }}
{{- range $source := kindIs "map" $resource | ternary (dig "sources" list $resource) list }}
{{- $used = or $used (and (kindIs "map" $source) (hasKey $source "cdi")) }}
{{- end }}
{{- end }}
{{- toJson ($used | ternary (default list .values.cdi.specDirs) list) }}
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

{{- /* Fails if an instance lacks what Dynamic Resource Allocation needs. */}}
{{- define "devhost.checkDra" -}}
{{- $values := .instance.values }}
{{- if $values.dra.enabled }}
{{- if not (.capabilities.APIVersions.Has "resource.k8s.io/v1") }}
{{- fail "dra.enabled: the cluster does not have resource.k8s.io/v1; devhost needs Kubernetes 1.36 or newer for it" }}
{{- end }}
{{- /* The path of a Unix socket has at most 107 bytes, of which devhost's names of sockets take 37. */}}
{{- if gt (add (len (trimSuffix "/" $values.kubelet.rootDir)) (len $values.dra.driver)) 70 }}
{{- fail (printf "dra.driver: the paths of sockets of the driver %s would be too long; set a shorter one" $values.dra.driver) }}
{{- end }}
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

{{- /* The trust flags as variables. */}}
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
