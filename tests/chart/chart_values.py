"""Values that, together, reach every branch of the templates."""

from typing import Any

Values = dict[str, Any]

MONITORING = ("--api-versions", "monitoring.coreos.com/v1")
NAMESPACED: Values = {
    "watchNamespaces": ["team-a", "team-b"],
    "adminTokenSecrets": [
        {"namespace": "team-a", "name": "admin"},
        {"namespace": "team-a", "name": "spare"},
        {"namespace": "team-b", "name": "admin"},
    ],
    "engineNetworkPolicy": {"enabled": True, "adminFrom": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]},
}
EVERYTHING: Values = {
    "image": {"repository": "mirror.example/evenflow", "digest": f"sha256:{'0' * 64}", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "workerImage": "mirror.example/worker:1",
    "simulatedImage": "mirror.example/engine:2",
    "replicaCount": 3,
    "crds": {"keep": False},
    "prometheus": {"url": "http://prometheus.monitoring:9090", "tokenSecret": {"name": "prometheus", "key": "bearer"}},
    "adminTokenSecrets": [{"namespace": "team-a", "name": "admin"}],
    "leaderElection": {"leaseDurationSeconds": 30, "renewDeadlineSeconds": 20, "retrySeconds": 4},
    "workers": 8,
    "log": {"format": "plain", "level": "DEBUG"},
    "serviceAccount": {"annotations": {"example.org/role": "evenflow"}},
    "podDisruptionBudget": {"maxUnavailable": "50%"},
    "resources": {"limits": {"memory": "2Gi"}},
    "commonLabels": {"team": "serving"},
    "podAnnotations": {"example.org/note": "x"},
    "podLabels": {"example.org/zone": "here"},
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "control", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "topologySpread": {"topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"},
    "podSecurityContext": {"runAsUser": 1234},
    "extraEnv": [{"name": "EVENFLOW_WATCHDOG_SECONDS", "value": "30"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "company-ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/company", "readOnly": True}],
    "metrics": {
        "port": 9000,
        "serviceMonitor": {"enabled": True, "interval": "10s", "labels": {"release": "prometheus"}},
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True, "labels": {"grafana_dashboard": "yes"}},
    },
    "networkPolicy": {
        "enabled": True,
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "egress": [{"ports": [{"port": 443, "protocol": "TCP"}]}],
    },
    "extraObjects": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-a"}},
        'apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ include "evenflow.name" . }}-b\n',
    ],
}
BARE: Values = {
    "replicaCount": 1,
    "watchNodes": False,
    "crds": {"enabled": False},
    "rbac": {"create": False, "aggregateClusterRoles": False},
    "serviceAccount": {"create": False},
    "podDisruptionBudget": {"enabled": False},
    "topologySpread": {"topologyKey": ""},
    "podSecurityContext": None,
    "securityContext": None,
    "resources": None,
}
ALL: dict[str, tuple[Values, tuple[str, ...]]] = {
    "default": ({}, ()),
    "namespaced": (NAMESPACED, ()),
    "everything": (EVERYTHING, MONITORING),
    "bare": (BARE, ()),
}
