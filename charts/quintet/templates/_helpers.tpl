{{/* The chart's name, or its override. */}}
{{- define "quintet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/*
The full name of the objects: RELEASE-quintet, or RELEASE if it contains "quintet". Truncated to 41 characters, so that
names with a suffix stay within 63.
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

{{/*
The name of a cluster-scoped object. It ends in the release's namespace, so that releases of one name do not share the
object: (list $ "-nodes").
*/}}
{{- define "quintet.clusterName" -}}
{{- $root := index . 0 }}
{{- printf "%s%s.%s" (include "quintet.fullname" $root) (index . 1) $root.Release.Namespace }}
{{- end }}

{{/*
The name of a ClusterRole that users bind: (list $ "-book-viewer"). One release of a cluster contains the
CustomResourceDefinitions. Its roles keep their names when the release is upgraded, so that no binding loses its role.
*/}}
{{- define "quintet.userRoleName" -}}
{{- $root := index . 0 }}
{{- if $root.Values.crds.enabled }}
{{- include "quintet.fullname" $root }}{{ index . 1 }}
{{- else }}
{{- include "quintet.clusterName" . }}
{{- end }}
{{- end }}

{{/* The name of an object whose namespace is a value: (list $ .Values.some.namespace "-suffix"). */}}
{{- define "quintet.nameIn" -}}
{{- $root := index . 0 }}
{{- if eq (default $root.Release.Namespace (index . 1)) $root.Release.Namespace }}
{{- include "quintet.fullname" $root }}{{ index . 2 }}
{{- else }}
{{- include "quintet.clusterName" (list $root (index . 2)) }}
{{- end }}
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

{{/* Labels for hook and test objects. The manager's selectors must not match them: (list $ "uninstall"). */}}
{{- define "quintet.partLabels" -}}
{{- $root := index . 0 }}
{{- $own := dict "app.kubernetes.io/name" (printf "%s-%s" (include "quintet.name" $root | trunc 50) (index . 1)) }}
{{- mustMerge $own (include "quintet.labels" $root | fromYaml) | toYaml }}
{{- end }}

{{/* The labels, overridden by additional ones: (list $ .Values.some.labels). */}}
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

{{/* The manager's image. The chart of a release contains the digest of its image, which a tag overrides. */}}
{{- define "quintet.image" -}}
{{- with default .Values.image.registry .Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}
{{- .Values.image.repository }}
{{- $released := .Files.Get "files/image-digest" | trim }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}
{{- else if .Values.image.tag }}:{{ .Values.image.tag }}
{{- else if $released }}@{{ $released }}
{{- else }}:{{ .Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* Resources without null entries, or nothing. Helm keeps a null if the chart has no default for its key. */}}
{{- define "quintet.resources" -}}
{{- $resources := dict }}
{{- range $part, $entries := . }}
{{- if kindIs "map" $entries }}
{{- $kept := dict }}
{{- range $name, $quantity := $entries }}
{{- if not (kindIs "invalid" $quantity) }}
{{- $_ := set $kept $name $quantity }}
{{- end }}
{{- end }}
{{- $entries = $kept }}
{{- end }}
{{- with $entries }}
{{- $_ := set $resources $part . }}
{{- end }}
{{- end }}
{{- with $resources }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* A list of image pull Secrets, or nothing. */}}
{{- define "quintet.imagePullSecrets" -}}
{{- with concat .Values.global.imagePullSecrets .Values.imagePullSecrets | uniq }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* The names of all controllers, as a YAML list. */}}
{{- define "quintet.kinds" -}}
{{- .Files.Get "files/kinds.yaml" }}
{{- end }}

{{/* The enabled controllers, separated by commas. */}}
{{- define "quintet.controllers" -}}
{{- $enabled := list }}
{{- $all := include "quintet.kinds" . | fromYamlArray }}
{{- range $name := $all }}
{{- if index $.Values.controllers $name }}
{{- $enabled = append $enabled $name }}
{{- end }}
{{- end }}
{{- if not $enabled }}
{{- fail (printf "No controller is enabled. Set at least one of controllers.%s to true." (join ", controllers." $all)) }}
{{- end }}
{{- join "," $enabled }}
{{- end }}

{{/* The rules of a generated file, without its header line: (list $ "daemonjob"). */}}
{{- define "quintet.rules" -}}
{{- $root := index . 0 }}
{{- $path := printf "files/rbac/%s.yaml" (index . 1) }}
{{- $text := $root.Files.Get $path | required (printf "The chart has no file %s. Run `cargo xtask generate`." $path) }}
{{- regexReplaceAll "^#[^\\n]*\\n" $text "" | trim }}
{{- end }}

{{/* The rules of a generated file, restricted to the manager's Lease: (list $ "leader-election"). */}}
{{- define "quintet.leaseRules" -}}
{{- $rules := list }}
{{- range $rule := include "quintet.rules" . | fromYamlArray }}
{{- /* RBAC cannot restrict create by name. */}}
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

{{/* "true" if the chart creates ClusterRoles, else nothing. */}}
{{- define "quintet.clusterRoles" -}}
{{- if and .Values.rbac.create (or (not .Values.watchNamespaces) .Values.rbac.clusterRoles) }}true{{ end }}
{{- end }}

{{/* The name of the Lease. It differs per release, so that releases in one namespace do not compete. */}}
{{- define "quintet.leaseName" -}}
{{- default (printf "%s-manager" (include "quintet.fullname" .)) .Values.leaderElection.name }}
{{- end }}

{{/* The namespace of the Lease. */}}
{{- define "quintet.leaseNamespace" -}}
{{- default .Release.Namespace .Values.leaderElection.namespace }}
{{- end }}

{{/*
"true" if the chart renders an object whose CustomResourceDefinition may be missing, else nothing:
(list $ "ServiceMonitor" .Values.metrics.serviceMonitor "metrics.serviceMonitor").
*/}}
{{- define "quintet.renders" -}}
{{- $root := index . 0 }}
{{- $kind := index . 1 }}
{{- $values := index . 2 }}
{{- if and $root.Values.metrics.enabled $values.enabled }}
{{- if or (eq $values.renderMode "alwaysRender") ($root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" $kind)) }}true
{{- else if eq $values.renderMode "failIfMissing" }}
{{- fail (printf "The cluster has no CustomResourceDefinition for %s (monitoring.coreos.com/v1). Install the CustomResourceDefinitions of prometheus-operator first, or set %s.renderMode to skipIfMissing." $kind (index . 3)) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The endpoint of a ServiceMonitor or PodMonitor, below its port. The last argument: Prometheus can send its own token.
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
  # The certificate does not name the scraped host. Authorization protects the samples, not TLS.
  insecureSkipVerify: true
  {{- end }}
{{- if not $values.authorization }}
{{- if index . 2 }}
bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
{{- else }}
{{- fail "metrics.secure requires a token, and a PodMonitor can only send one from a Secret. Set metrics.podMonitor.authorization, or use metrics.serviceMonitor, which sends the token of Prometheus' ServiceAccount." }}
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
{{- if $values.honorLabels }}
honorLabels: true
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

{{/* Egress rules for every pod of the release. */}}
{{- define "quintet.egress" -}}
# DNS. On OpenShift, the DNS pods listen on port 5353, and policies apply to the ports of pods, not of Services.
- ports:
    {{- range $port := list 53 5353 }}
    - port: {{ $port }}
      protocol: UDP
    - port: {{ $port }}
      protocol: TCP
    {{- end }}
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

{{/* "true" if the PodDisruptionBudget never allows an eviction, else nothing. Kubernetes rounds percentages up. */}}
{{- define "quintet.budgetBlocks" -}}
{{- $replicas := int .Values.replicas }}
{{- if and .Values.podDisruptionBudget.enabled (gt $replicas 1) }}
{{- $least := toString .Values.podDisruptionBudget.minAvailable }}
{{- $blocks := has (toString .Values.podDisruptionBudget.maxUnavailable) (list "0" "0%") }}
{{- if hasSuffix "%" $least }}
{{- $blocks = ge (add (mul (trimSuffix "%" $least | int) $replicas) 99) (mul 100 $replicas) }}
{{- else if $least }}
{{- $blocks = ge (int $least) $replicas }}
{{- end }}
{{- if $blocks }}true{{ end }}
{{- end }}
{{- end }}

{{/* The PromQL label matchers for this release's samples, without braces. */}}
{{- define "quintet.samples" -}}
{{- default (printf "namespace=%q,pod=~%q" .Release.Namespace (printf "%s-[0-9a-z]+-[0-9a-z]+" (include "quintet.fullname" .))) .Values.metrics.prometheusRule.selector }}
{{- end }}

{{/* A list of tolerations, or nothing. */}}
{{- define "quintet.tolerations" -}}
{{- $tolerations := default (list) .Values.tolerations }}
{{- if .Values.tolerateCordon }}
{{- $tolerations = append $tolerations (dict "key" "node.kubernetes.io/unschedulable" "operator" "Exists" "effect" "NoSchedule") | uniq }}
{{- end }}
{{- with $tolerations }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* Pod fields that hook and test pods share with the manager's pods. */}}
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
enableServiceLinks: false
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
The command that removes one finalizer from all objects of a kind, at any position in their lists:
(list "pods" "--all-namespaces" "dj.dysproz.io/ledger").
*/}}
{{- define "quintet.removeFinalizer" -}}
{{- $found := printf `{{range .items}}{{$of := .metadata}}{{range $at, $name := $of.finalizers}}{{if eq $name %q}}{{$of.namespace}} {{$of.name}} {{$at}}{{"\n"}}{{end}}{{end}}{{end}}` (index . 2) }}
{{- $patch := printf `[{"op":"test","path":"/metadata/finalizers/'"$at"'","value":%q},{"op":"remove","path":"/metadata/finalizers/'"$at"'"}]` (index . 2) }}
{{- printf `kubectl get %s %s -o go-template='%s' | while read -r ns name at; do kubectl patch %s -n "$ns" "$name" --type=json -p '%s'; done` (index . 0) (index . 1) $found (index . 0) $patch }}
{{- end }}
