{{- define "evenflow.prefix" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $prefix := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $prefix .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "evenflow.name" -}}
{{ include "evenflow.prefix" . }}-operator
{{- end -}}

{{- define "evenflow.selector" -}}
app.kubernetes.io/name: evenflow-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "evenflow.labels" -}}
{{- $own := include "evenflow.selector" . | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/version" .Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/part-of" "evenflow" -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_")) -}}
{{- toYaml (merge $own .Values.commonLabels) -}}
{{- end -}}

{{/* The test's pod and the dashboard belong to the release, but no selector of the operator's may find them. */}}
{{- define "evenflow.otherLabels" -}}
{{- $labels := include "evenflow.labels" .context | fromYaml -}}
{{- toYaml (set $labels "app.kubernetes.io/name" .name) -}}
{{- end -}}

{{- define "evenflow.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "evenflow.name" .) "default" .Values.serviceAccount.create) }}
{{- end -}}

{{- define "evenflow.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What pods do with pools in the namespaces that are served: the same rules in a ClusterRole and in Roles. */}}
{{- define "evenflow.rules" -}}
- apiGroups: [serving.evenflow.dev]
  resources: [llmservingpools]
  verbs: [get, list, watch]
- apiGroups: [serving.evenflow.dev]
  resources: [llmservingpools/status, llmservingpools/scale]
  verbs: [patch]
# Asked by the admission plugin OwnerReferencesPermissionEnforcement (OpenShift).
- apiGroups: [serving.evenflow.dev]
  resources: [llmservingpools/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{- define "evenflow.subject" -}}
subjects:
- kind: ServiceAccount
  name: {{ include "evenflow.serviceAccount" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
{{- end -}}

{{/* Objects of the Prometheus Operator can't be made where their definitions are missing: say so before Helm half does it. */}}
{{- define "evenflow.needsMonitoring" -}}
{{- if not (.context.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") -}}
{{- fail (printf "%s: the cluster has no monitoring.coreos.com/v1; install the Prometheus Operator first, or switch it off (for helm template: --api-versions monitoring.coreos.com/v1)" .value) -}}
{{- end -}}
{{- end -}}
