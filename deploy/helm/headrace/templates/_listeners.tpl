{{/*
The listeners of an agent, in one place: what it binds, and what it advertises.
PLAINTEXT is for clients, INTERNAL for the other agents, EXTERNAL for clients that come through a node's port.
POD_IP and HOST_IP come first, because $(NAME) refers to a variable before it.
*/}}
{{- define "headrace.listenerEnv" -}}
{{- $nodePort := eq .Values.externalAccess.type "nodePort" -}}
- name: POD_IP
  valueFrom: { fieldRef: { fieldPath: status.podIP } }
{{- if $nodePort }}
- name: HOST_IP
  valueFrom: { fieldRef: { fieldPath: status.hostIP } }
{{- end }}
- name: HEADRACE_LISTENERS
  value: PLAINTEXT://0.0.0.0:9092,INTERNAL://0.0.0.0:9094{{ if $nodePort }},EXTERNAL://0.0.0.0:9095{{ end }}
- name: HEADRACE_ADVERTISED_LISTENERS
  value: PLAINTEXT://{{ include "headrace.advertised" . }},INTERNAL://$(POD_IP):9094
    {{- if $nodePort }},EXTERNAL://$(HOST_IP):{{ .Values.externalAccess.nodePort.port }}{{ end }}
- name: HEADRACE_INTER_BROKER_LISTENER_NAME
  value: INTERNAL
{{- end -}}

{{/* The address that clients of PLAINTEXT get for an agent. */}}
{{- define "headrace.advertised" -}}
{{- if eq .Values.externalAccess.type "loadBalancer" -}}
{{ .Values.externalAccess.loadBalancer.host }}:{{ .Values.externalAccess.loadBalancer.port }}
{{- else -}}
$(POD_IP):9092
{{- end -}}
{{- end -}}

{{- define "headrace.listenerPorts" -}}
- name: kafka
  containerPort: 9092
- name: internal
  containerPort: 9094
{{- if eq .Values.externalAccess.type "nodePort" }}
- name: external
  containerPort: 9095
{{- end }}
- name: http
  containerPort: 9644
{{- end -}}
