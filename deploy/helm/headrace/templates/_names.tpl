{{/* Names, labels and images. */}}

{{- define "headrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* 40 characters leave room for the longest suffix in a label of 63. */}}
{{- define "headrace.fullname" -}}
{{- $name := include "headrace.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "headrace.selector" -}}
app.kubernetes.io/name: {{ include "headrace.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of an object: dict root, component. */}}
{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: headrace
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- if regexMatch "^(az|abfss)://" .root.Values.bucket.url }}
azure.workload.identity/use: "true"
{{- end }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* dict image, default (a tag). */}}
{{- define "headrace.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .default .image.tag }}
{{- end -}}
{{- end -}}

{{- define "headrace.account" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "headrace.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* podLabel, nodeLabel or none. */}}
{{- define "headrace.zoneFrom" -}}
{{- if ne .Values.zone.from "auto" -}}
{{ .Values.zone.from }}
{{- else if and (semverCompare ">=1.35.0-0" .Capabilities.KubeVersion.Version) (hasPrefix "topology.kubernetes.io/" .Values.zone.label) -}}
podLabel
{{- else -}}
nodeLabel
{{- end -}}
{{- end -}}

{{/* SIGTERM comes after preStop; Kubernetes counts both. The agent ends by itself within shutdown.grace.ms. */}}
{{- define "headrace.graceSeconds" -}}
{{- $settings := merge (dict) .settings .root.Values.settings -}}
{{- $ms := int64 (default 15000 (get $settings "shutdown.grace.ms")) -}}
{{- add .preStopSeconds (div (add $ms 999) 1000) 15 -}}
{{- end -}}
