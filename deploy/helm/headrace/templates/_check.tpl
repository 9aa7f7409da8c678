{{/*
What values.schema.json cannot say: each refusal names the key. Rendered first, by configmap.yaml.
*/}}
{{- define "headrace.check" -}}
{{- $v := .Values -}}
{{- if not $v.metastore.existingSecret -}}
{{- fail "metastore.existingSecret is not set: name the Secret that has the metastore's address" -}}
{{- end -}}
{{- $parts := $v.metastore.parts -}}
{{- if and (not $parts.host) (or $parts.port $parts.user $parts.password $parts.database) -}}
{{- fail "metastore.parts.host is not set: with it the address is made of its parts, without it metastore.key has the whole address" -}}
{{- end -}}
{{- if and $v.metastore.parameters (not $parts.host) -}}
{{- fail "metastore.parameters has no effect without metastore.parts.host: they are part of the address in metastore.key" -}}
{{- end -}}
{{- if not $v.bucket.url -}}
{{- fail "bucket.url is not set: s3://name/prefix, az://account/container/prefix or gs://name/prefix" -}}
{{- end -}}
{{- if and (hasPrefix "gs://" $v.bucket.url) $v.bucket.existingSecret -}}
{{- fail "bucket.existingSecret has no effect with gs://: annotate the service account (iam.gke.io/gcp-service-account)" -}}
{{- end -}}
{{- if and $v.console.enabled (not $v.console.tokens.existingSecret) -}}
{{- fail "console.tokens.existingSecret is not set: the console shows records, so people need a token" -}}
{{- end -}}
{{- if and $v.tables.enabled (not $v.tables.image.repository) -}}
{{- fail "tables.image.repository is not set: the agents' image has no pyiceberg; name an image with the extra tables" -}}
{{- end -}}
{{- if and $v.tables.enabled (not (get $v.tables.settings "tables.catalog.name")) -}}
{{- fail "tables.settings has no tables.catalog.name: it names the Iceberg catalog" -}}
{{- end -}}
{{- if and $v.spark.tables.enabled (not $v.spark.enabled) -}}
{{- fail "spark.tables.enabled needs spark.enabled: its driver has Spark's account and executors" -}}
{{- end -}}
{{- if and $v.spark.tables.enabled (not (get $v.spark.tables.settings "tables.catalog.name")) -}}
{{- fail "spark.tables.settings has no tables.catalog.name: it names the Iceberg catalog" -}}
{{- end -}}
{{- if and $v.tables.enabled (get $v.settings "tables.catalog.name") -}}
{{- fail "settings has tables.catalog.name: compactors would keep tables, too, and their image has no pyiceberg; set it in tables.settings only" -}}
{{- end -}}
{{- if and (gt (int $v.agents.processes) 1) (ne $v.externalAccess.type "none") -}}
{{- fail "agents.processes is above 1: only one agent of a pod could be reached from outside; use agents.replicas" -}}
{{- end -}}
{{- if and (eq $v.externalAccess.type "loadBalancer") (not $v.externalAccess.loadBalancer.host) -}}
{{- fail "externalAccess.loadBalancer.host is not set: agents advertise it to clients" -}}
{{- end -}}
{{- if and (eq $v.externalAccess.type "loadBalancer") $v.externalAccess.loadBalancer.proxyProtocol -}}
{{- if not $v.networkPolicy.enabled -}}
{{- fail "externalAccess.loadBalancer.proxyProtocol needs networkPolicy.enabled: without it every pod could write the address of another client into the header, and so forge the hosts in ACLs" -}}
{{- end -}}
{{- if not $v.networkPolicy.proxies -}}
{{- fail "networkPolicy.proxies is not set: name the addresses of the load balancer (ipBlock), because everybody else who reaches the port of externalAccess.loadBalancer.proxyProtocol can forge the hosts in ACLs" -}}
{{- end -}}
{{- else if $v.networkPolicy.proxies -}}
{{- fail "networkPolicy.proxies has no effect without externalAccess.loadBalancer.proxyProtocol" -}}
{{- end -}}
{{- $sec := $v.security -}}
{{- if and (hasSuffix "SSL" $sec.protocol) (not $sec.keystore.existingSecret) -}}
{{- fail (printf "security.keystore.existingSecret is not set: security.protocol %s needs a key and a certificate" $sec.protocol) -}}
{{- end -}}
{{- if and $sec.keystore.existingSecret (not (hasSuffix "SSL" $sec.protocol)) -}}
{{- fail (printf "security.keystore.existingSecret has no effect with security.protocol %s" $sec.protocol) -}}
{{- end -}}
{{- if and (hasPrefix "SASL" $sec.protocol) (not $sec.client.existingSecret) -}}
{{- fail "security.client.existingSecret is not set: with it helm test and the chart's Jobs log in" -}}
{{- end -}}
{{- if ne (empty $sec.firstUsers.names) (empty $sec.firstUsers.existingSecret) -}}
{{- fail "security.firstUsers needs both existingSecret, with the passwords, and names" -}}
{{- end -}}
{{- if and $sec.firstUsers.names (not (hasPrefix "SASL" $sec.protocol)) -}}
{{- fail (printf "security.firstUsers has no effect with security.protocol %s" $sec.protocol) -}}
{{- end -}}
{{- if and $v.spark.enabled $v.spark.admissionPolicy (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "spark.admissionPolicy needs Kubernetes 1.30, and this is %s: there Spark's account could create, change and delete every pod and ConfigMap of the namespace; set it to false to accept this, in a namespace without other programs" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas is greater than autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and (not $v.autoscaling.enabled) $v.autoscaling.produceStage.enabled -}}
{{- fail "autoscaling.produceStage.enabled has no effect without autoscaling.enabled" -}}
{{- end -}}
{{- if and (eq (int $v.agents.maxSurge) 0) (eq (int $v.agents.maxUnavailable) 0) -}}
{{- fail "agents.maxSurge and agents.maxUnavailable are both 0: an upgrade could not replace any agent" -}}
{{- end -}}
{{- if and $v.agents.podDisruptionBudget.enabled (lt (int $v.agents.podDisruptionBudget.maxUnavailable) 1) -}}
{{- fail "agents.podDisruptionBudget.maxUnavailable is 0: no node with an agent could be drained" -}}
{{- end -}}
{{- if and (eq $v.zone.from "podLabel") (semverCompare "<1.35.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "zone.from is podLabel, but Kubernetes %s does not copy labels of nodes to pods: use nodeLabel" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and (eq $v.zone.from "podLabel") (not (hasPrefix "topology.kubernetes.io/" $v.zone.label)) -}}
{{- fail (printf "zone.label is %s: Kubernetes copies only topology.kubernetes.io/zone and region to pods: use zone.from=nodeLabel" $v.zone.label) -}}
{{- end -}}
{{- if and $v.monitoring.podMonitor.enabled $v.monitoring.serviceMonitor.enabled -}}
{{- fail "monitoring.podMonitor.enabled and monitoring.serviceMonitor.enabled: both would read each metric twice" -}}
{{- end -}}
{{- if and $v.monitoring.bearerTokenSecret.name (not (get $v.settings "http.bearer.token.location")) -}}
{{- fail "monitoring.bearerTokenSecret.name has no effect without http.bearer.token.location in settings" -}}
{{- end -}}
{{- range $name, $env := dict "agents.extraEnv" $v.agents.extraEnv "compactor.extraEnv" $v.compactor.extraEnv "tables.extraEnv" $v.tables.extraEnv "spark.tables.extraEnv" $v.spark.tables.extraEnv -}}
{{- range $env -}}
{{- if and (hasPrefix "HEADRACE_" .name) (not .valueFrom) -}}
{{- fail (printf "%s: %s: give it in `settings` (or with valueFrom, if it is a secret)" $name .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
