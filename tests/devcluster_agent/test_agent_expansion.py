"""What a container is started with: variables, references, paths under mounts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_devcluster.agent.expansion import (
    ConfigError,
    Mount,
    command_line,
    environment,
    expand,
    field_value,
    mounts_of,
    references,
    resolve_port,
    rewrite,
)

POD = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "labels": {"b": "2", "a": 'say "hi"\n'},
        "annotations": {"evenflow.dev/worker-config": '{"version":1}'},
    },
    "spec": {"nodeName": "node-1"},
}


def value_of(path: str) -> str:
    return field_value(path, POD, pod_ip="127.77.0.9", host_ip="127.0.0.1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y2z"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$", "$"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
    ],
)
def test_expand_follows_kubernetes(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


@given(st.text(alphabet="ab/ {}:,"))
def test_text_without_dollars_is_left_alone(text: str) -> None:
    assert expand(text, {"a": "1"}) == text


def test_later_variables_see_earlier_ones_only() -> None:
    container = {
        "name": "c",
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}],
        "env": [
            {"name": "A", "value": "$(P_k)-$(B)"},
            {"name": "B", "value": "$(A)!"},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
            {"name": "O", "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "k", "optional": True}}},
        ],
    }
    found = environment(
        container,
        field=value_of,
        config_maps={"cm": {"k": "v"}, "gone": None},
        secrets={"s": {"token": "$(A)"}},
    )
    assert found == {"P_k": "v", "A": "v-$(B)", "B": "v-$(B)!", "IP": "127.77.0.9", "S": "$(A)"}
    assert references(container) == ({"cm", "gone"}, {"s"})


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"configMapKeyRef": {"name": "cm", "key": "nope"}}, ["env[X].configMapKeyRef", "'cm'", "'nope'", "optional"]),
        ({"secretKeyRef": {"name": "gone", "key": "k"}}, ["env[X].secretKeyRef", "'gone'", "doesn't exist"]),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, ["env[X].valueFrom", "resourceFieldRef", "isn't supported"]),
    ],
)
def test_a_value_that_cannot_be_had_names_field_and_remedy(source: dict[str, object], words: list[str]) -> None:
    container = {"name": "c", "env": [{"name": "X", "valueFrom": source}]}
    with pytest.raises(ConfigError) as caught:
        environment(container, field=value_of, config_maps={"cm": {}}, secrets={"gone": None})
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_downward_api_fields() -> None:
    assert value_of("metadata.annotations['evenflow.dev/worker-config']") == '{"version":1}'
    assert value_of("metadata.labels['none']") == ""
    assert value_of("metadata.labels") == 'a="say \\"hi\\"\\n"\nb="2"'
    assert value_of("spec.nodeName") == "node-1"
    with pytest.raises(ConfigError, match=r"status\.phase"):
        value_of("status.phase")


def test_the_longest_mount_wins_and_only_whole_path_parts_count() -> None:
    mounts = [Mount("/etc", "/host/a"), Mount("/etc/evenflow", "/host/b")]
    assert rewrite("/etc/evenflow/config.json", mounts) == "/host/b/config.json"
    assert rewrite("/etc/other", mounts) == "/host/a/other"
    assert rewrite("/etc", mounts) == "/host/a"
    assert rewrite("/etcetera/x", mounts) == "/etcetera/x"
    assert rewrite("--f=/etc/x", mounts) == "--f=/etc/x"


def test_mounts_are_checked() -> None:
    def mounts(**mount: str) -> tuple[Mount, ...]:
        return mounts_of({"name": "c", "volumeMounts": [mount]}, {"v": "/host/v"})

    assert mounts(name="v", mountPath="/data/", subPath="in") == (Mount("/data", "/host/v/in"),)
    for bad, field in [
        ({"name": "w", "mountPath": "/d"}, "name"),
        ({"name": "v", "mountPath": "/"}, "mountPath"),
        ({"name": "v", "mountPath": "d"}, "mountPath"),
        ({"name": "v", "mountPath": "/d", "subPath": "../x"}, "subPath"),
        ({"name": "v", "mountPath": "/d", "subPath": "/x"}, "subPath"),
    ]:
        with pytest.raises(ConfigError, match=field):
            mounts(**bad)


def test_commands_are_expanded_then_rewritten() -> None:
    container = {"name": "c", "command": ["run", "$(CONF)"], "args": ["--x=$(N)"]}
    mounts = [Mount("/etc/evenflow", "/host/b")]
    words = command_line(container, {"CONF": "/etc/evenflow/config.json", "N": "3"}, mounts)
    assert words == ["run", "/host/b/config.json", "--x=3"]
    with pytest.raises(ConfigError, match="doesn't run images"):
        command_line({"name": "c", "args": ["--x"]}, {}, [])


def test_ports_by_name() -> None:
    container = {"name": "c", "ports": [{"name": "http", "containerPort": 8000}]}
    assert resolve_port("http", container) == 8000
    assert resolve_port(81, container) == 81
    assert resolve_port("82", container) == 82
    with pytest.raises(ConfigError, match="no port is named 'admin'"):
        resolve_port("admin", container)
