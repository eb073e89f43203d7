"""A KV connector without a wire, as prefill and decode engines have one: loads arrive when the test says so."""

from dataclasses import replace
from typing import Any

from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.v1.outputs import KVConnectorOutput
from vllm_kit import Engine


class Remote(KVConnectorBase_V1):  # type: ignore[misc]
    """`tokens` of a prompt lie elsewhere, by id; `sends` keeps a finished request's memory until it is sent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tokens: dict[str, int] = {}
        self.loading: list[str] = []
        self.sends = False

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        missing = self.tokens.get(request.request_id, 0) - num_computed_tokens
        return max(missing, 0), missing > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            del self.tokens[request.request_id]
            self.loading.append(request.request_id)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return self.sends, None

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def start_load_kv(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...


def with_remote(config: VllmConfig) -> VllmConfig:
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="Remote", kv_connector_module_path=__name__, kv_role="kv_both"
    )
    config.scheduler_config.disable_hybrid_kv_cache_manager = True
    return config


def step(made: Engine, *, received: tuple[str, ...] = (), sent: tuple[str, ...] = ()) -> None:
    """One pass, at whose end these requests' KV has arrived here, or has been sent away."""
    made.schedule()
    scheduled, output = made.in_flight[-1]
    transfers = KVConnectorOutput(finished_recving=set(received), finished_sending=set(sent))
    made.in_flight[-1] = (scheduled, replace(output, kv_connector_output=transfers))
    made.update()
