{{/* The chart's name, or its override. */}}
{{- define "quintet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/*
The name of the release's objects: `quintet` for a release of that name, `RELEASE-quintet` for another. Short enough for
the suffixes that are added to it to stay within 63 characters.
*/}}
{{- define "quintet.fullname" -}}
{{- $name := include "quintet.name" . }}
{{- if .Values.fullnameOverride }}
{{- $name = .Values.fullnameOverride }}
{{- else if contains $name .Release.Name }}
{{- $name = .Release.Name }}
{{- else }}
{{- $name = printf "%s-%s" .Release.Name $name }}
{{- end }}
{{- $name | trunc 41 | trimSuffix "-" }}
{{- end }}

{{- define "quintet.selectorLabels" -}}
app.kubernetes.io/name: {{ include "quintet.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The chart's own labels win over commonLabels. */}}
{{- define "quintet.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
}}
{{- mustMerge (include "quintet.selectorLabels" . | fromYaml) $own .Values.commonLabels | toYaml }}
{{- end }}

{{/* Labels of what is not the manager, so that no selector of the manager's finds it: (list $ "uninstall"). */}}
{{- define "quintet.partLabels" -}}
{{- $root := index . 0 }}
{{- $own := dict "app.kubernetes.io/name" (printf "%s-%s" (include "quintet.name" $root | trunc 50) (index . 1)) }}
{{- mustMerge $own (include "quintet.labels" $root | fromYaml) | toYaml }}
{{- end }}

{{/* Labels with further ones, which win: (list $ .Values.some.labels). */}}
{{- define "quintet.labelsWith" -}}
{{- mustMerge (dict) (index . 1) (include "quintet.labels" (index . 0) | fromYaml) | toYaml }}
{{- end }}

{{- define "quintet.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "quintet.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "quintet.image" -}}
{{- with default .Values.image.registry .Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}
{{- .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}
{{- else }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}
{{- end }}

{{/* Nothing, or a list of Secrets' names. */}}
{{- define "quintet.imagePullSecrets" -}}
{{- with concat .Values.global.imagePullSecrets .Values.imagePullSecrets | uniq }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* The names of all controllers, as a YAML list. */}}
{{- define "quintet.kinds" -}}
{{- .Files.Get "files/kinds.yaml" }}
{{- end }}

{{/* The enabled controllers, separated by commas, in the order of the values file. */}}
{{- define "quintet.controllers" -}}
{{- $enabled := list }}
{{- $all := include "quintet.kinds" . | fromYamlArray }}
{{- range $name := $all }}
{{- if index $.Values.controllers $name }}
{{- $enabled = append $enabled $name }}
{{- end }}
{{- end }}
{{- if not $enabled }}
{{- fail (printf "No controller is enabled: set at least one of controllers.%s to true." (join ", " $all)) }}
{{- end }}
{{- join "," $enabled }}
{{- end }}

{{/* The rules of one generated file without its first line, the note that it is generated: (list $ "daemonjob"). */}}
{{- define "quintet.rules" -}}
{{- $root := index . 0 }}
{{- $path := printf "files/rbac/%s.yaml" (index . 1) }}
{{- $text := $root.Files.Get $path | required (printf "The chart lacks %s: run `cargo xtask generate`." $path) }}
{{- regexReplaceAll "^#[^\\n]*\\n" $text "" | trim }}
{{- end }}

{{/* The rules of one generated file about the Lease, and about no other where that can be said: (list $ "leader-election"). */}}
{{- define "quintet.leaseRules" -}}
{{- $rules := list }}
{{- range $rule := include "quintet.rules" . | fromYamlArray }}
{{- /* What is made has no name yet that could be asked for. */}}
{{- if not (has "create" $rule.verbs) }}
{{- $_ := set $rule "resourceNames" (list (include "quintet.leaseName" (index $ 0))) }}
{{- end }}
{{- $rules = append $rules $rule }}
{{- end }}
{{- toYaml $rules }}
{{- end }}

{{/* A duration such as 1m30s, in milliseconds. */}}
{{- define "quintet.milliseconds" -}}
{{- $sum := 0 }}
{{- range regexFindAll "[0-9]+(ms|[hms])" . -1 }}
{{- $unit := get (dict "h" 3600000 "m" 60000 "s" 1000 "ms" 1) (regexFind "[a-z]+" .) }}
{{- $sum = add $sum (mul (regexFind "[0-9]+" . | atoi) $unit) }}
{{- end }}
{{- $sum }}
{{- end }}

{{/* Whether ClusterRoles are made: "true" or nothing. */}}
{{- define "quintet.clusterRoles" -}}
{{- if and .Values.rbac.create (or (not .Values.watchNamespaces) .Values.rbac.clusterRoles) }}true{{ end }}
{{- end }}

{{/* The name of the Lease: releases in one namespace do not compete for one. */}}
{{- define "quintet.leaseName" -}}
{{- default (printf "%s-manager" (include "quintet.fullname" .)) .Values.leaderElection.name }}
{{- end }}

{{/* The namespace of the Lease. */}}
{{- define "quintet.leaseNamespace" -}}
{{- default .Release.Namespace .Values.leaderElection.namespace }}
{{- end }}

{{/*
Whether an object of a kind that the cluster may lack is rendered, "true" or nothing:
(list $ "ServiceMonitor" .Values.metrics.serviceMonitor "metrics.serviceMonitor").
*/}}
{{- define "quintet.renders" -}}
{{- $root := index . 0 }}
{{- $kind := index . 1 }}
{{- $values := index . 2 }}
{{- if and $root.Values.metrics.enabled $values.enabled }}
{{- if or (eq $values.renderMode "alwaysRender") ($root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" $kind)) }}true
{{- else if eq $values.renderMode "failIfMissing" }}
{{- fail (printf "The cluster knows no %s (monitoring.coreos.com/v1): install the definitions of prometheus-operator first, or set %s.renderMode to skipIfMissing." $kind (index . 3)) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
What a monitor of either kind says of its endpoint, below the port; the last word says whether Prometheus' own token may be sent:
(list $ .Values.metrics.serviceMonitor true).
*/}}
{{- define "quintet.endpoint" -}}
{{- $root := index . 0 }}
{{- $values := index . 1 }}
path: /metrics
{{- if $root.Values.metrics.secure }}
scheme: https
tlsConfig:
  {{- with $values.tlsConfig }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  # The certificate names no host that Prometheus asks for: what protects the samples is who may ask.
  insecureSkipVerify: true
  {{- end }}
{{- if not $values.authorization }}
{{- if index . 2 }}
bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
{{- else }}
{{- fail "Secure metrics are read with a token, and a PodMonitor takes one from a Secret alone: give metrics.podMonitor.authorization, or use metrics.serviceMonitor, which sends Prometheus' own." }}
{{- end }}
{{- end }}
{{- end }}
{{- with $values.authorization }}
authorization:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.interval }}
interval: {{ . }}
{{- end }}
{{- with $values.scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- with $values.relabelings }}
relabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What every pod of the release may talk to, as rules of a NetworkPolicy. */}}
{{- define "quintet.egress" -}}
# DNS.
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
  {{- with .Values.networkPolicy.egress.dns }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
# The API server.
- ports:
    {{- range .Values.networkPolicy.egress.apiServerPorts }}
    - port: {{ . }}
      protocol: TCP
    {{- end }}
  {{- with .Values.networkPolicy.egress.apiServer }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* What selects this release's samples in PromQL, without braces. */}}
{{- define "quintet.samples" -}}
{{- default (printf "namespace=%q,pod=~%q" .Release.Namespace (printf "%s-[0-9a-z]+-[0-9a-z]+" (include "quintet.fullname" .))) .Values.metrics.prometheusRule.selector }}
{{- end }}

{{/* Nothing, or a list. */}}
{{- define "quintet.tolerations" -}}
{{- $tolerations := default (list) .Values.tolerations }}
{{- if .Values.tolerateCordon }}
{{- $tolerations = append $tolerations (dict "key" "node.kubernetes.io/unschedulable" "operator" "Exists" "effect" "NoSchedule") | uniq }}
{{- end }}
{{- with $tolerations }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* What the pods of a hook or test have in common with the manager's. */}}
{{- define "quintet.shortPod" -}}
{{- with include "quintet.imagePullSecrets" . }}
imagePullSecrets:
  {{- . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .Values.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- if kindIs "bool" .Values.hostUsers }}
hostUsers: {{ .Values.hostUsers }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "quintet.tolerations" . }}
tolerations:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
The line that takes a finalizer of ours off all objects of a kind, wherever among others it stands:
(list "pods" "--all-namespaces" "dj.dysproz.io/ledger").
*/}}
{{- define "quintet.letGo" -}}
{{- $found := printf `{{range .items}}{{$of := .metadata}}{{range $at, $name := $of.finalizers}}{{if eq $name %q}}{{$of.namespace}} {{$of.name}} {{$at}}{{"\n"}}{{end}}{{end}}{{end}}` (index . 2) }}
{{- $patch := printf `[{"op":"test","path":"/metadata/finalizers/'"$at"'","value":%q},{"op":"remove","path":"/metadata/finalizers/'"$at"'"}]` (index . 2) }}
{{- printf `kubectl get %s %s -o go-template='%s' | while read -r ns name at; do kubectl patch %s -n "$ns" "$name" --type=json -p '%s'; done` (index . 0) (index . 1) $found (index . 0) $patch }}
{{- end }}
