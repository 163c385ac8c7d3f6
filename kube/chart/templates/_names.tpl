{{- define "weir.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/component: controller
{{ include "weir.release" . }}
{{- end }}

{{- define "weir.release" -}}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* The controller's file. */ -}}
{{- define "weir.file" -}}
class: {{ .Values.class | quote }}
without-class: {{ .Values.withoutClass }}
gateway-controller: {{ .Values.gatewayController | quote }}
owner: {{ .Values.owner | quote }}
mode: {{ .Values.mode }}
snat: {{ .Values.snat }}
backends: {{ .Values.backends }}
node-health: {{ .Values.nodeHealth }}
{{- with .Values.zone }}
zone: {{ . | quote }}
{{- end }}
{{- with .Values.mtu }}
mtu: {{ . }}
{{- end }}
{{- if not .Values.podWeights }}
pod-weights: false
{{- end }}
{{- with .Values.quota }}
quota:
{{- range $key, $most := . }}
  {{ $key | kebabcase }}: {{ $most | int64 }}
{{- end }}
{{- end }}
{{- with .Values.quotas }}
quotas:
{{- range $namespace, $quota := . }}
- namespace: {{ $namespace | quote }}
{{- range $key, $most := $quota }}
  {{ $key | kebabcase }}: {{ $most | int64 }}
{{- end }}
{{- end }}
{{- end }}
lease:
  namespace: {{ .Release.Namespace | quote }}
  name: {{ include "weir.name" . | quote }}
  duration: {{ .Values.leaseDuration }}
{{- with .Values.directors }}
directors:
{{- end }}
{{- $secret := .Values.secret }}
{{- range .Values.directors }}
- server: {{ .server | quote }}
{{- range $key, $file := dict "ca" $secret.ca "token-file" $secret.token "cert" $secret.cert "key" $secret.key }}
{{- if $file }}
  {{ $key }}: {{ printf "/etc/weir/directors/%s" $file | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "weir.director.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/component: director
{{ include "weir.release" . }}
{{- end }}

{{- /* What each director's containers are, with the group's name, its values, and for a pod of its own "pod". */ -}}
{{- define "weir.director" -}}
image: {{ printf "%s:%s" .root.Values.directorImage.repository (.root.Values.directorImage.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .root.Values.directorImage.pullPolicy }}
args:
- run
- --config=/var/lib/weir/weir.yaml
- --socket=/run/weir/director.sock
- --bpffs={{ .root.Values.director.bpffs }}{{ with .pod }}/$(POD_NAME)
- --grace-period={{ .drain }}s{{ end }}
- --log-level={{ .root.Values.logLevel }}
- --log-format={{ .root.Values.logFormat }}
{{- if .pod }}
env:
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  # docs/start/requirements.md says what each is for. It listens at no port below 1024, and peers with
  # BFD may come at any time.
  capabilities: {drop: [ALL], add: [BPF, NET_ADMIN, PERFMON, NET_RAW, SYS_NICE, IPC_LOCK]}
{{- with .values.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
- {name: state, mountPath: /var/lib/weir}
- {name: run, mountPath: /run/weir}
- {name: bpffs, mountPath: {{ .root.Values.director.bpffs }}, mountPropagation: HostToContainer}
{{- end }}

{{- /* A token of an account, for what runs in another cluster. */ -}}
{{- define "weir.token" -}}
apiVersion: v1
kind: Secret
type: kubernetes.io/service-account-token
metadata:
  name: {{ .account }}-token
  namespace: {{ .root.Release.Namespace }}
  labels: {{- .labels | nindent 4 }}
  annotations: {kubernetes.io/service-account.name: {{ .account }}}
{{- end }}

{{- /* The volume with the way to the cluster of the Services. */ -}}
{{- define "weir.services" -}}
{name: services, secret: {secretName: {{ .root.Values.servicesCluster.secret }}, defaultMode: {{ .mode }}, items: [{key: {{ .key }}, path: kubeconfig}]}}
{{- end }}

{{- /* The container of a director's sidecar, which needs no rights on its node but root's files. */ -}}
{{- define "weir.sidecar" -}}
image: {{ printf "%s:%s" .root.Values.image.repository (.root.Values.image.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args:
- node
- --group={{ .group }}
- --owner={{ .root.Values.owner }}
- --file=/var/lib/weir/weir.yaml
- --state=/var/lib/weir/state
- --socket=/run/weir/director.sock
- --log-level={{ .root.Values.logLevel }}
- --log-format={{ .root.Values.logFormat }}
{{- if .root.Values.servicesCluster.secret }}
- --kubeconfig=/etc/weir/services/kubeconfig
- --node-in-cluster
{{- end }}
{{- if .pod }}
- --pod=$(POD_NAME)
- --pod-bpffs={{ .root.Values.director.bpffs }}
{{- end }}
{{- with .more }}
- {{ . }}
{{- end }}
env:
{{- if .pod }}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
- {name: POD_IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}
{{- else }}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
{{- end }}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]{{ with .add }}, add: [{{ . }}]{{ end }}}
volumeMounts:
- {name: state, mountPath: /var/lib/weir}
- {name: run, mountPath: /run/weir}
{{- if .root.Values.servicesCluster.secret }}
- {name: services, mountPath: /etc/weir/services, readOnly: true}
{{- end }}
{{- if .pod }}
- {name: bpffs, mountPath: {{ .root.Values.director.bpffs }}, mountPropagation: HostToContainer}
{{- end }}
{{- end }}

{{- /* Groups whose directors are pods of their own ("pods"), or nodes, as JSON. */ -}}
{{- define "weir.groups" -}}
{{- $groups := dict }}
{{- range $group, $values := .root.Values.groups }}
{{- if eq $.pods (hasKey $values "deployment") }}{{ $_ := set $groups $group $values }}{{ end }}
{{- end }}
{{- toJson $groups }}
{{- end }}

{{- define "weir.agent.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/component: agent
{{ include "weir.release" . }}
{{- end }}

{{- /* The container of an agent's sidecar, which needs no rights on its node but root's files. */ -}}
{{- define "weir.agent.sidecar" -}}
image: {{ printf "%s:%s" .root.Values.image.repository (.root.Values.image.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args:
- node
- --agent-file=/var/lib/weir/agent.yaml
- --agent-socket=/run/weir/agent.sock
{{- range .root.Values.agent.interfaces }}
- --agent-interface={{ . }}
{{- end }}
{{- range .root.Values.agent.replyInterfaces }}
- --agent-reply-interface={{ . }}
{{- end }}
- --socket=
- --log-level={{ .root.Values.logLevel }}
- --log-format={{ .root.Values.logFormat }}
{{- with .more }}
- {{ . }}
{{- end }}
env:
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
- {name: state, mountPath: /var/lib/weir}
- {name: run, mountPath: /run/weir}
{{- end }}
