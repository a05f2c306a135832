{{- /*
The warnings in NOTES for one instance: what its values are to be used with care for. `devhost
validate` knows what its configuration needs of the values.
*/}}
{{- define "devhost.advice" -}}
{{- $advice := list }}
{{- if .values.deviceAccess.privileged }}
{{- $advice = append $advice (printf "%s is privileged (deviceAccess.privileged): protect its configuration and its image like the nodes themselves." .name) }}
{{- end }}
{{- toJson $advice }}
{{- end }}
