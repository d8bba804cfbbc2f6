{{/* The start of the names of all objects, pods and nodes. Nodes keep their names for good. */}}
{{- define "kvorum.name" -}}
{{- if contains "kvorum" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-kvorum" (.Release.Name | trunc 33 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "kvorum.selector" -}}
app.kubernetes.io/name: kvorum
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kvorum.labels" -}}
{{ include "kvorum.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kvorum.scheme" -}}
{{- if eq .Values.tls.mode "none" -}}http{{- else -}}https{{- end -}}
{{- end -}}

{{/* The DNS domain of the single pods. */}}
{{- define "kvorum.domain" -}}
{{ include "kvorum.name" . }}-nodes.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* The URL of one node: (list $ ORDINAL). */}}
{{- define "kvorum.url" -}}
{{- $ := index . 0 -}}
{{- $pod := printf "%s-%v" (include "kvorum.name" $) (index . 1) -}}
{{ include "kvorum.scheme" $ }}://{{ $pod }}.{{ include "kvorum.domain" $ }}:8080
{{- end -}}

{{/* The zone of one node, or nothing: (list $ ORDINAL). */}}
{{- define "kvorum.zone" -}}
{{- $zones := (index . 0).Values.zones -}}
{{- if $zones -}}{{- (index $zones (mod (index . 1) (len $zones))).name -}}{{- end -}}
{{- end -}}

{{- define "kvorum.tlsSecret" -}}
{{- if eq .Values.tls.mode "cert-manager" -}}
{{ include "kvorum.name" . }}-tls
{{- else -}}
{{ required "tls.secretName: the Secret with tls.crt, tls.key and ca.crt" .Values.tls.secretName }}
{{- end -}}
{{- end -}}

{{/* Host names in the nodes' certificate. */}}
{{- define "kvorum.hosts" -}}
{{- $service := printf "%s.%s.svc" (include "kvorum.name" .) .Release.Namespace -}}
- {{ printf "*.%s" (include "kvorum.domain" .) | quote }}
- {{ $service }}.{{ .Values.clusterDomain }}
- {{ $service }}
- {{ include "kvorum.name" . }}.{{ .Release.Namespace }}
- {{ include "kvorum.name" . }}
- localhost
{{- end -}}

{{/* Bytes of a quantity of memory in Kubernetes' notation. */}}
{{- define "kvorum.bytes" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- $decimal := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- $binary := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $factors := merge $decimal $binary -}}
{{- if not (hasKey $factors $unit) -}}
{{- fail (printf "resources.limits.memory: %s has none of Ki, Mi, Gi, Ti, k, M, G, T" $text) -}}
{{- end -}}
{{- mulf (float64 $number) (index $factors $unit) | int64 -}}
{{- end -}}

{{/* --memory: the given value, or half of the limit, or nothing. */}}
{{- define "kvorum.memory" -}}
{{- $limit := dig "limits" "memory" "" .Values.resources -}}
{{- if .Values.memory -}}
{{- .Values.memory -}}
{{- else if $limit -}}
{{- $mebibytes := div (include "kvorum.bytes" $limit | int64) 2097152 -}}
{{- if lt $mebibytes 64 -}}
{{- fail (printf "resources.limits.memory: %v is less than 128Mi, a node's least" $limit) -}}
{{- end -}}
{{- $mebibytes }}MiB
{{- end -}}
{{- end -}}

{{/* Fails for values that are not allowed. */}}
{{- define "kvorum.checked" -}}
{{- $name := include "kvorum.name" . -}}
{{- if lt (int .Values.nodes) (int .Values.founders) -}}
{{- $why := "The founders stay for good: with fewer nodes, keys would be lost or out of reach." -}}
{{- $pause := printf "To pause the cluster: kubectl scale statefulset %s --replicas 0" $name -}}
{{- $counts := printf "nodes: %v is less than founders, %v." .Values.nodes .Values.founders -}}
{{- fail (printf "%s %s %s" $counts $why $pause) -}}
{{- end -}}
{{- $had := lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-nodes" $name) | default dict -}}
{{- $founders := dig "metadata" "annotations" "kvorum/founders" "" $had -}}
{{- if and $founders (ne $founders (toString (int .Values.founders))) -}}
{{- fail (printf "founders: %s nodes founded the cluster; the value never changes" $founders) -}}
{{- end -}}
{{- if and (eq .Values.tls.mode "cert-manager") (not .Values.tls.issuerRef.name) -}}
{{- fail "tls.issuerRef.name: the issuer that signs the nodes' certificate" -}}
{{- end -}}
{{- end -}}

{{/* Security context of every container. */}}
{{- define "kvorum.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "kvorum.user" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
# Changes only an empty volume: a node's files are for its user alone.
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}
