{{/*
The listeners of an agent, in one place: what it binds, and what it advertises.
The ports of a pod with several agents count up, so INTERNAL begins far enough from PLAINTEXT.
PLAINTEXT is for clients in the cluster (CLIENTS, if `security.protocol` is another), EXTERNAL for those outside it,
INTERNAL for the other agents, ADMIN for people in the pod.
POD_IP and HOST_IP come first, because $(NAME) refers to a variable before it. An IPv6 address needs no brackets in
these settings, so the same text is right for either family.
*/}}
{{- define "headrace.listenerEnv" -}}
{{- $host := include "headrace.listenHost" . -}}
- name: POD_IP
  valueFrom: { fieldRef: { fieldPath: status.podIP } }
{{- if eq .Values.externalAccess.type "nodePort" }}
- name: HOST_IP
  valueFrom: { fieldRef: { fieldPath: status.hostIP } }
{{- end }}
{{- $clients := include "headrace.clients" . }}
- name: HEADRACE_LISTENERS
  value: {{ $clients }}://{{ $host }}:9092,INTERNAL://{{ $host }}:{{ include "headrace.internalPort" . }}{{ if include "headrace.external" . }},EXTERNAL://{{ $host }}:9095{{ end }}{{ if .Values.security.adminListener }},ADMIN://127.0.0.1:9096{{ end }}
- name: HEADRACE_ADVERTISED_LISTENERS
  value: {{ $clients }}://{{ include "headrace.inside" . }},INTERNAL://$(POD_IP):{{ include "headrace.internalPort" . }}{{ with include "headrace.external" . }},EXTERNAL://{{ . }}{{ end }}{{ if .Values.security.adminListener }},ADMIN://127.0.0.1:9096{{ end }}
{{- if ne $clients "PLAINTEXT" }}
- name: HEADRACE_LISTENER_SECURITY_PROTOCOL_MAP
  value: {{ $clients }}:{{ .Values.security.protocol }}{{ if include "headrace.external" . }},EXTERNAL:{{ .Values.security.protocol }}{{ end }}
{{- if hasPrefix "SASL" .Values.security.protocol }}
- name: HEADRACE_SASL_ENABLED_MECHANISMS
  value: {{ .Values.security.mechanisms | quote }}
{{- end }}
{{- if .Values.security.keystore.existingSecret }}
- name: HEADRACE_SSL_KEYSTORE_LOCATION
  value: /etc/headrace-keystore/{{ .Values.security.keystore.key }}
{{- end }}
{{- end }}
- name: HEADRACE_INTER_BROKER_LISTENER_NAME
  value: INTERNAL
{{- if and (eq .Values.externalAccess.type "loadBalancer") .Values.externalAccess.loadBalancer.proxyProtocol }}
- name: HEADRACE_PROXY_PROTOCOL_LISTENERS
  value: EXTERNAL
{{- end }}
{{- end -}}

{{/*
The address that clients in the cluster get: with one address for all agents this is the Service's, which outlasts any
pod; else the pod's.
*/}}
{{- define "headrace.inside" -}}
{{- if eq .Values.externalAccess.type "loadBalancer" -}}
{{ include "headrace.fullname" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.port }}
{{- else -}}
$(POD_IP):9092
{{- end -}}
{{- end -}}

{{/* The address that clients outside the cluster get for an agent; empty: there is no such listener. */}}
{{- define "headrace.external" -}}
{{- if eq .Values.externalAccess.type "loadBalancer" -}}
{{ .Values.externalAccess.loadBalancer.host }}:{{ .Values.externalAccess.loadBalancer.port }}
{{- else if eq .Values.externalAccess.type "nodePort" -}}
$(HOST_IP):{{ .Values.externalAccess.nodePort.port }}
{{- end -}}
{{- end -}}

{{/* network.listenHost where a port follows. */}}
{{- define "headrace.listenHost" -}}
{{- $host := .Values.network.listenHost -}}
{{ if contains ":" $host }}[{{ $host }}]{{ else }}{{ $host }}{{ end }}
{{- end -}}

{{/* What a Service says about address families; nothing by default. */}}
{{- define "headrace.ipFamilies" -}}
{{- with .Values.network.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.network.ipFamilies }}
ipFamilies: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "headrace.internalPort" -}}
{{ ternary 9194 9094 (gt (int .Values.agents.processes) 1) }}
{{- end -}}

{{- define "headrace.listenerPorts" -}}
{{- range $process := until (int .Values.agents.processes) }}
- name: kafka{{ if $process }}-{{ $process }}{{ end }}
  containerPort: {{ add 9092 $process }}
- name: internal{{ if $process }}-{{ $process }}{{ end }}
  containerPort: {{ add (int (include "headrace.internalPort" $)) $process }}
{{- end }}
{{- if include "headrace.external" . }}
- name: external
  containerPort: 9095
{{- end }}
- name: http
  containerPort: 9644
{{- end -}}


{{/* The listener for clients in the cluster. */}}
{{- define "headrace.clients" -}}
{{ ternary "PLAINTEXT" "CLIENTS" (eq .Values.security.protocol "PLAINTEXT") }}
{{- end -}}

{{/* A file with which the chart's own clients log in: the flag, the mount, the volume. */}}
{{- define "headrace.clientFlag" -}}
{{- if .Values.security.client.existingSecret }} --command-config /etc/headrace-client/{{ .Values.security.client.key }}{{ end -}}
{{- end -}}

{{- define "headrace.clientMount" -}}
{{- if .Values.security.client.existingSecret }}
- name: client
  mountPath: /etc/headrace-client
  readOnly: true
{{- end }}
{{- end -}}

{{- define "headrace.clientVolume" -}}
{{- if .Values.security.client.existingSecret }}
- name: client
  secret:
    secretName: {{ .Values.security.client.existingSecret }}
{{- end }}
{{- end -}}
