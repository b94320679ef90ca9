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
{{- $name | trunc 47 | trimSuffix "-" }}
{{- end }}

{{- define "quintet.selectorLabels" -}}
app.kubernetes.io/name: {{ include "quintet.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "quintet.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "quintet.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "quintet.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "quintet.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "quintet.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end }}
{{- .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}
{{- else }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}
{{- end }}

{{/* The enabled controllers, separated by commas, in the order of the values file. */}}
{{- define "quintet.controllers" -}}
{{- $enabled := list }}
{{- range $name := list "daemonjob" "podset" "pulsarconsumer" "greeting" "book" }}
{{- if index $.Values.controllers $name }}
{{- $enabled = append $enabled $name }}
{{- end }}
{{- end }}
{{- if not $enabled }}
{{- fail "No controller is enabled: set at least one of controllers.daemonjob, podset, pulsarconsumer, greeting, book to true." }}
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
