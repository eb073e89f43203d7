"""The whole resource, and how one is read from the cluster."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from evenflow_operator.api.base import ApiModel
from evenflow_operator.api.errors import SpecError
from evenflow_operator.api.messages import field_errors
from evenflow_operator.api.names import API_VERSION, KIND
from evenflow_operator.api.spec import LLMServingPoolSpec
from evenflow_operator.api.status import LLMServingPoolStatus


class OwnerReference(ApiModel):
    """metav1.OwnerReference, as far as the operator reads it."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


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
        Raises SpecError, which names every field at fault.
        """
        try:
            return cls.model_validate(obj, by_alias=True, by_name=False)
        except ValidationError as error:
            unreadable = {str(fault["loc"][1]) for fault in error.errors() if _in_status(fault["loc"])}
            errors = [fault for fault in error.errors() if not (fault["loc"] and fault["loc"][0] == "status")]
            if errors:
                raise SpecError(field_errors(errors, obj)) from None
        status = obj.get("status")
        readable = (
            {key: value for key, value in status.items() if key not in unreadable}
            if isinstance(status, Mapping) and unreadable
            else {}
        )
        return cls.model_validate({**obj, "status": readable}, by_alias=True, by_name=False)


def _in_status(location: tuple[int | str, ...]) -> bool:
    return len(location) > 1 and location[0] == "status"
