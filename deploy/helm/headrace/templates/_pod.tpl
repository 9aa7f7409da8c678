{{/* What the containers of agents, compactors, hooks and Spark have in common. */}}

{{/*
The environment that metastore and bucket need; secrets only by reference. libpq takes the parts that an address lacks
from PG* variables, as they are: nothing in them needs percent-encoding.
*/}}
{{- define "headrace.metastoreEnv" -}}
{{- if .Values.metastore.parts.host -}}
- name: HEADRACE_METASTORE_URL
  value: {{ printf "postgresql://%s" (empty .Values.metastore.parameters | ternary "" (printf "?%s" .Values.metastore.parameters)) | quote }}
{{- range $variable, $part := dict "PGHOST" "host" "PGPORT" "port" "PGUSER" "user" "PGPASSWORD" "password" "PGDATABASE" "database" }}
{{- with get $.Values.metastore.parts $part }}
- name: {{ $variable }}
  valueFrom:
    secretKeyRef:
      name: {{ $.Values.metastore.existingSecret }}
      key: {{ . }}
{{- end }}
{{- end }}
{{- else -}}
- name: HEADRACE_METASTORE_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.metastore.existingSecret }}
      key: {{ .Values.metastore.key }}
{{- end }}
{{- end -}}

{{/* s3, azure or google: whose bucket it is. */}}
{{- define "headrace.cloud" -}}
{{- regexMatch "^(az|abfss)://" .Values.bucket.url | ternary "azure" (hasPrefix "gs://" .Values.bucket.url | ternary "google" "s3") -}}
{{- end -}}

{{- define "headrace.bucketEnv" -}}
- name: HEADRACE_BUCKET
  value: {{ .Values.bucket.url | quote }}
{{- $cloud := include "headrace.cloud" . }}
{{- with .Values.bucket.endpoint }}
- name: {{ get (dict "s3" "HEADRACE_S3_ENDPOINT" "azure" "HEADRACE_AZURE_ENDPOINT" "google" "HEADRACE_GCS_ENDPOINT") $cloud }}
  value: {{ . | quote }}
{{- end }}
{{- with .Values.bucket.region }}
- name: HEADRACE_S3_REGION
  value: {{ . | quote }}
{{- end }}
{{- if .Values.bucket.pathStyle }}
- name: HEADRACE_S3_PATH_STYLE
  value: "true"
{{- end }}
{{- with .Values.bucket.existingSecret }}
{{- if eq $cloud "azure" }}
- name: AZURE_STORAGE_KEY
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.bucket.accountKeyKey }}
{{- else }}
- name: AWS_ACCESS_KEY_ID
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.bucket.accessKeyIdKey }}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.bucket.secretAccessKeyKey }}
{{- if $.Values.bucket.sessionTokenKey }}
- name: AWS_SESSION_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.bucket.sessionTokenKey }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.bucket.caConfigMap }}
- name: {{ eq $cloud "s3" | ternary "AWS_CA_BUNDLE" "SSL_CERT_FILE" }}
  value: /etc/headrace-bucket/{{ .Values.bucket.caKey }}
{{- end }}
{{- end -}}

{{/* Mounts and volumes; `config` is the ConfigMap with the properties files. */}}
{{- define "headrace.mounts" -}}
- name: tmp
  mountPath: /tmp
- name: config
  mountPath: /etc/headrace
  readOnly: true
{{- if include "headrace.logins" . | trim }}
- name: logins
  mountPath: /etc/headrace-logins
  readOnly: true
{{- end }}
{{ include "headrace.caMount" . }}
{{- end -}}

{{- define "headrace.caMount" -}}
{{- if .Values.bucket.caConfigMap }}
- name: bucket-ca
  mountPath: /etc/headrace-bucket
  readOnly: true
{{- end }}
{{- end -}}

{{- define "headrace.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
- name: config
  configMap:
    name: {{ .config }}
{{- if include "headrace.logins" .root | trim }}
- name: logins
  secret:
    secretName: {{ .logins | default (printf "%s-logins" (include "headrace.fullname" .root)) }}
    defaultMode: 0440
{{- end }}
{{ include "headrace.caVolume" .root }}
{{- end -}}

{{- define "headrace.caVolume" -}}
{{- if .Values.bucket.caConfigMap }}
- name: bucket-ca
  configMap:
    name: {{ .Values.bucket.caConfigMap }}
{{- end }}
{{- end -}}

{{/* dict root, account (name). Service variables would be refused as unknown settings. */}}
{{- define "headrace.podBasics" -}}
serviceAccountName: {{ .account }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Placement of a part: agents or compactor. */}}
{{- define "headrace.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "headrace.container" -}}
image: {{ include "headrace.image" (dict "image" .Values.image "default" .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end -}}

{{/*
Probes of the HTTP listener, by the process's settings. Only readiness depends on metastore and bucket: a shared outage
restarts no process.
*/}}
{{- define "headrace.probes" -}}
{{- $scheme := "" -}}
{{- if get . "http.ssl.keystore.location" -}}{{- $scheme = ", scheme: HTTPS" -}}{{- end -}}
startupProbe:
  httpGet: { path: /healthz, port: http{{ $scheme }} }
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: { path: /readyz, port: http{{ $scheme }} }
  periodSeconds: 5
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: { path: /healthz, port: http{{ $scheme }} }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{/* How Prometheus reads metrics, in an endpoint of a PodMonitor or ServiceMonitor. */}}
{{- define "headrace.scrape" -}}
{{- if get .Values.settings "http.ssl.keystore.location" }}
scheme: https
{{- with .Values.monitoring.tlsConfig }}
tlsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with .Values.monitoring.bearerTokenSecret }}
{{- if .name }}
authorization:
  credentials: { name: {{ .name }}, key: {{ .key }} }
{{- end }}
{{- end }}
{{- end -}}

{{/*
Settings of the cluster that follow from other values, in every properties file: a new cluster gets them, and a process
of a cluster with another value warns. Behind a load balancer each connection reaches any agent, which forwards.
*/}}
{{- define "headrace.derivedSettings" -}}
{{- if eq .Values.externalAccess.type "loadBalancer" }}
advertised.shared: true
{{- end }}
{{- end -}}

{{/*
A properties file of dict part, settings: sorted; whole numbers, which Helm reads as floats, are written in full. An
address with a login is in the Secret of logins.yaml, and the file refers to it.
*/}}
{{- define "headrace.properties" -}}
{{- $part := .part -}}
{{- range $name, $value := .settings }}
{{ $name }}={{ if kindIs "float64" $value }}{{ int64 $value }}{{ else if include "headrace.hasLogin" $value }}${file:/etc/headrace-logins/{{ $part }}.{{ $name }}}{{ else }}{{ $value }}{{ end }}
{{- end }}
{{- end -}}

{{/* Not empty if the value of a setting is an address with a user or password. A reference is none. */}}
{{- define "headrace.hasLogin" -}}
{{- if and (kindIs "string" .) (contains "@" .) (regexMatch "//.*@" .) }}yes{{ end -}}
{{- end -}}

{{/* The settings of each part that has a file, and those of Spark's drivers, as YAML. */}}
{{- define "headrace.partSettings" -}}
{{- $derived := include "headrace.derivedSettings" . | fromYaml -}}
agent: {{ merge (dict) $derived .Values.agents.settings .Values.settings | toJson }}
compactor: {{ merge (dict) $derived .Values.compactor.settings .Values.settings | toJson }}
tables: {{ ternary (merge (dict "process.roles" "tables") $derived .Values.tables.settings .Values.settings) (dict) .Values.tables.enabled | toJson }}
cluster: {{ merge (dict) $derived .Values.cluster.settings .Values.settings | toJson }}
spark-tables: {{ ternary .Values.spark.tables.settings (dict) .Values.spark.tables.enabled | toJson }}
{{- end -}}

{{/* Addresses with a login by part and setting, as YAML; nothing if there are none. */}}
{{- define "headrace.logins" -}}
{{- range $part, $settings := include "headrace.partSettings" . | fromYaml }}
{{- range $name, $value := $settings }}
{{- if include "headrace.hasLogin" $value }}
{{ $part }}.{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
