{{/*
The listeners of an agent, in one place: what it binds, and what it advertises to clients.
POD_IP and HOST_IP come first, because $(NAME) refers to a variable before it.
*/}}
{{- define "headrace.listenerEnv" -}}
- name: POD_IP
  valueFrom: { fieldRef: { fieldPath: status.podIP } }
{{- if eq .Values.externalAccess.type "nodePort" }}
- name: HOST_IP
  valueFrom: { fieldRef: { fieldPath: status.hostIP } }
{{- end }}
- name: HEADRACE_LISTENERS
  value: PLAINTEXT://0.0.0.0:{{ .Values.service.port }}
- name: HEADRACE_ADVERTISED_LISTENERS
  value: PLAINTEXT://{{ include "headrace.advertised" . }}
{{- end -}}

{{/* The address that clients get for an agent. */}}
{{- define "headrace.advertised" -}}
{{- if eq .Values.externalAccess.type "loadBalancer" -}}
{{ .Values.externalAccess.loadBalancer.host }}:{{ .Values.externalAccess.loadBalancer.port }}
{{- else if eq .Values.externalAccess.type "nodePort" -}}
$(HOST_IP):{{ .Values.externalAccess.nodePort.port }}
{{- else -}}
$(POD_IP):{{ .Values.service.port }}
{{- end -}}
{{- end -}}

{{- define "headrace.listenerPorts" -}}
- name: kafka
  containerPort: {{ .Values.service.port }}
- name: http
  containerPort: 9644
{{- end -}}
