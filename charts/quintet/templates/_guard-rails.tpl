{{/*
"true" if the chart renders the guard rails, else nothing. By default, not for the account "default", which other pods use,
and not without ClusterRoles, because the installer may not create cluster-scoped objects then.
*/}}
{{- define "quintet.guardRails" -}}
{{- if kindIs "bool" .Values.guardRails.enabled }}
{{- if .Values.guardRails.enabled }}true{{ end }}
{{- else if and .Values.rbac.clusterRoles (ne (include "quintet.serviceAccountName" .) "default") (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") }}true
{{- end }}
{{- end }}

{{/* A policy up to its matchConstraints: (list $ "-pods"). */}}
{{- define "quintet.policy" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ include "quintet.clusterName" . }}
  labels:
    {{- include "quintet.labels" (index . 0) | nindent 4 }}
spec:
  failurePolicy: Fail
{{- end }}

{{/* The user name of an account of the release: (list $ "quintet"). */}}
{{- define "quintet.userName" -}}
{{- printf "system:serviceaccount:%s:%s" (index . 0).Release.Namespace (index . 1) }}
{{- end }}

{{/* The user name of the uninstall Job. */}}
{{- define "quintet.uninstallUser" -}}
{{- include "quintet.userName" (list . (printf "%s-uninstall" (include "quintet.fullname" .))) }}
{{- end }}

{{/* The user names of the release's accounts, as a list in CEL. */}}
{{- define "quintet.users" -}}
{{- $users := list (include "quintet.userName" (list . (include "quintet.serviceAccountName" .))) }}
{{- if .Values.uninstallHook.enabled }}
{{- $users = append $users (include "quintet.uninstallUser" .) }}
{{- end }}
{{- toJson $users }}
{{- end }}

{{/*
Variables with these metadata fields of the object and of the old object, such as labels and oldLabels. They are empty if
the field is not set, and if there is no such object.
*/}}
{{- define "quintet.metadata" -}}
{{- range $field := . }}
{{- $empty := has $field (list "labels" "annotations") | ternary "{}" "[]" }}
- name: {{ $field }}
  expression: "request.operation != 'DELETE' && has(object.metadata.{{ $field }}) ? object.metadata.{{ $field }} : {{ $empty }}"
- name: {{ include "quintet.old" $field }}
  expression: "request.operation != 'CREATE' && has(oldObject.metadata.{{ $field }}) ? oldObject.metadata.{{ $field }} : {{ $empty }}"
{{- end }}
{{- end }}

{{- define "quintet.old" -}}
old{{ substr 0 1 . | upper }}{{ substr 1 (len .) . }}
{{- end }}

{{/* Whether the owner reference r is a controller reference to one of these kinds, in CEL: (list $names "podset"). */}}
{{- define "quintet.isController" -}}
{{- $names := index . 0 }}
{{- $kinds := list }}
{{- range $controller := rest . }}
{{- $kind := index $names.kinds $controller }}
{{- $kinds = append $kinds (printf "r.kind == '%s' && r.apiVersion.startsWith('%s/')" $kind.kind $kind.group) }}
{{- end }}
{{- printf "has(r.controller) && r.controller && (%s)" (join " || " $kinds) }}
{{- end }}

{{/* Whether the key k has one of these beginnings, in CEL. */}}
{{- define "quintet.hasPrefix" -}}
{{ toJson . }}.exists(prefix, k.startsWith(prefix))
{{- end }}

{{/*
Whether an update leaves the labels or annotations unchanged, except those for whose key k a condition holds, in CEL:
(list "labels" "k == 'a'").
*/}}
{{- define "quintet.unchanged" -}}
{{- $new := printf "variables.%s" (index . 0) }}
{{- $old := printf "variables.%s" (include "quintet.old" (index . 0)) }}
{{- $new }}.all(k, {{ index . 1 }} || k in {{ $old }} && {{ $old }}[k] == {{ $new }}[k]) && {{ $old }}.all(k, {{ index . 1 }} || k in {{ $new }})
{{- end }}
