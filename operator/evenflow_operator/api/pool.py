"""The whole resource, and how one is read from the cluster."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from evenflow_operator.api.base import ApiModel
from evenflow_operator.api.errors import SpecError
from evenflow_operator.api.messages import field_errors, unrelated
from evenflow_operator.api.names import API_VERSION, KIND
from evenflow_operator.api.rules import cel_twin, duplicates
from evenflow_operator.api.spec import LLMServingPoolSpec
from evenflow_operator.api.status import LLMServingPoolStatus


class ObjectMeta(ApiModel):
    """metav1.ObjectMeta, as far as the operator reads it."""

    name: str = ""
    namespace: str = "default"
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class LLMServingPool(ApiModel):
    """A pool of LLM engines that serve one model."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: ObjectMeta
    spec: LLMServingPoolSpec
    status: LLMServingPoolStatus = Field(default_factory=LLMServingPoolStatus)

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> "LLMServingPool":
        """Read a pool as the API server stores it; fields that this release doesn't know are ignored.

        A status that another release wrote can't make a pool unusable: its parts that can't be read count as absent.
        Raises SpecError, which names every field at fault, rules across fields included.
        """
        try:
            pool = cls._read(obj)
        except ValidationError as error:
            faults = error.errors()
            serious = [fault for fault in faults if fault["loc"][:1] != ("status",)]
            if serious:
                errors = field_errors(serious)
                raise SpecError([*errors, *unrelated([*duplicates(obj), *cel_twin(obj)], errors)]) from None
            unreadable = {str(fault["loc"][1]) for fault in faults if len(fault["loc"]) > 1}
            status = obj["status"] if unreadable else {}
            pool = cls._read({**obj, "status": {key: part for key, part in status.items() if key not in unreadable}})
        broken = cel_twin({"metadata": {"name": pool.metadata.name}, "spec": obj["spec"]})
        if broken:
            raise SpecError(broken)
        return pool

    @classmethod
    def _read(cls, obj: Mapping[str, Any]) -> "LLMServingPool":
        return cls.model_validate(obj, by_alias=True, by_name=False)
