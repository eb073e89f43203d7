"""Ports, paths and environment variables that operator and worker agree on."""

ENGINE_PORT = 8000
ENGINE_PORT_NAME = "http"
ADMIN_PORT = 8010
"""Plus the data-parallel index: every engine of a pod has an admin port of its own."""
ADMIN_PORT_NAME = "admin"

CONFIG_MOUNT = "/etc/evenflow"
CONFIG_FILE = "config.json"
DEFAULT_CONFIG_PATH = f"{CONFIG_MOUNT}/{CONFIG_FILE}"

ENV_CONFIG = "EVENFLOW_CONFIG"
ENV_ADMIN_HOST = "EVENFLOW_ADMIN_HOST"
ENV_ADMIN_PORT = "EVENFLOW_ADMIN_PORT"
ENV_ADMIN_TOKEN_FILE = "EVENFLOW_ADMIN_TOKEN_FILE"
ENV_ADMIN_WRITE = "EVENFLOW_ADMIN_WRITE"
"""`open`: config pushes are accepted without a token on any address, because a NetworkPolicy guards the port."""

STATE_PATH = "/evenflow/v1/state"
CONFIG_PATH = "/evenflow/v1/config"
LENGTHS_PATH = "/evenflow/v1/lengths"
METRICS_PATH = "/metrics"

TRAFFIC_CLASS_HEADER = "x-traffic-class"
TRAFFIC_CLASS_ARG = "traffic_class"
"""Key inside the request body's `vllm_xargs`; the header wins."""
