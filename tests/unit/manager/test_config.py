"""manager.yaml is refused with its line, and never opens an unprotected port by accident."""

from pathlib import Path

import pytest

from varuna_manager.config import ManagerConfig, checked, load
from varuna_manager.pool_settings import LocalPool, Sizing
from varuna_manager.sizing.settings import settings
from varuna_runtime.spec.errors import InvalidInput


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "manager.yaml"
    path.write_text(text)
    return path


def test_an_empty_file_means_the_embedded_defaults(tmp_path: Path) -> None:
    assert load(written(tmp_path, "")) == ManagerConfig()
    assert load(written(tmp_path, "---\n# port: 1\n\n")) == ManagerConfig()


def test_the_store_is_below_the_home_by_default() -> None:
    assert ManagerConfig(home="/var/lib/varuna").store_url == "file:///var/lib/varuna/store"
    assert ManagerConfig(store="s3://bucket/x").store_url == "s3://bucket/x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("host: 127.0.0.1\nprot: 1\n", r"manager\.yaml:2: prot: .*did you mean `port`"),
        ("port: '80'\n", r'manager\.yaml:1: port: seen .*80"'),
        ("port: 70000\n", r"manager\.yaml:1: port: seen .*70000"),
        ("home: /x\nbeat_s: 0\n", r'manager\.yaml:2: beat_s: seen "0"'),
        ("port: 1\nport: 2\n", r"manager\.yaml:2: port: "),
        ("- a\n", "wanted a mapping"),
        ("host: [\n", r"manager\.yaml:\d"),
        ("security: tls\ninsecure_plaintext: true\n", "insecure_plaintext: seen true beside security: tls"),
        ("beat_s: 2.0\nlease_s: 3.0\n", r"manager\.yaml: suspect_s: .*at least 3 x beat_s"),
        ("suspect_s: 4.0\nlease_s: 3.0\n", r"manager\.yaml: lease_s: .*at least suspect_s"),
        (
            "pools: []\n",
            r"^[^\n]*:1: pools: seen an empty list, wanted a list of at least 1, each item a mapping",
        ),
        (
            "pools: {a: b}\n",
            r"pools: seen a mapping, wanted a list of at least 1, each item a mapping with a `pro",
        ),
        # A wrong item is told alone: the list around it is none of the mistakes.
        (
            "pools:\n  - {name: A, provider: local}\n",
            r"^[^\n]*:2: [^\n]*a name of at most 40 lower-case[^\n]*$",
        ),
        (
            "pools:\n  - {name: a, provider: static, hosts: [{host: -oProxyCommand=x, node: n}]}\n",
            r":2: pools\[0\]\.hosts\[0\]\.host: .*wanted \[USER@\]HOST",
        ),
        (
            "pools:\n  - {name: a, provider: static, hosts: [{host: h, node: ../../etc}]}\n",
            r":2: pools\[0\]\.hosts\[0\]\.node: .*begins with a letter or digit",
        ),
        (
            "pools:\n"
            "  - {name: a, provider: static, hosts: [{host: h, node: n}]}\n"
            "  - {name: b, provider: static, hosts: [{host: i, node: m},\n"
            "      {host: j, node: n}]}\n",
            r':4: pools\[1\]\.hosts\[1\]\.node: seen "n" a second time, wanted .*line 2',
        ),
        ("advertise: http://manager\n", r":1: advertise: .*wanted HOST or HOST:PORT"),
        (
            "pools:\n  - name: a\n",
            r'manager\.yaml:2: pools\[0\]\.provider: seen nothing, wanted one of "aws"',
        ),
        ("pools:\n  - name: a\n    provider: aw\n", r'manager\.yaml:3: pools\[0\]\.provider: seen "aw"'),
        ("pools:\n  - {name: a, provider: aws, grop: g, region: r}\n", r"grop: .*did you mean `group`"),
        ("pools:\n  - {name: a, provider: aws, group: g}\n", r"pools\[0\]\.region: seen nothing"),
        ("pools:\n  - {name: a, provider: azure, region: r}\n", r"region: seen the unknown key `region`"),
        ("pools:\n  - {name: a, provider: local}\n  - {name: a, provider: static}\n", r":3: .*a second time"),
        (
            "pools:\n  - name: a\n    provider: local\n    min: 9\n    max: 3\n",
            r":4: .*at most max, which is 3",
        ),
        ("pools:\n  - {name: a, provider: local, min: 20}\n", r"at most max, which is 16 by default"),
        ("pools:\n  - {name: a, provider: gcp, project: p, group: g}\n", "neither zone nor region"),
        (
            "pools:\n  - {name: a, provider: gcp, project: p, group: g, zone: z, region: r}\n",
            "both zone and region",
        ),
        ("sizing:\n  backoff_s: 4000\n", r"manager\.yaml:2: sizing\.backoff_s: .*at most backoff_cap_s"),
        ("sizing:\n  backof_s: 4\n", r"did you mean `backoff_s`"),
        ("sizing:\n  poll_s: 10s\n", r"sizing\.poll_s: .*write the seconds: 10"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load(written(tmp_path, text))


def test_the_example_of_deploy_is_valid_and_has_the_defaults_it_says() -> None:
    found = load(Path(__file__).parents[3] / "deploy" / "manager.example.yaml")
    assert [pool.provider for pool in found.pools] == ["aws", "aws"]
    assert found.sizing == Sizing(max_price=20.0)


def test_without_a_word_there_is_one_local_pool_that_only_varuna_up_fills() -> None:
    assert ManagerConfig().pools == (LocalPool(name="local"),)
    assert not settings(ManagerConfig().pools, ManagerConfig().sizing).rules[0].is_sized


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere\.yaml: cannot be read"):
        load(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_loopback_is_plain_text_unless_tls_is_asked_for(host: str) -> None:
    assert not checked(ManagerConfig(host=host)).is_tls
    assert checked(ManagerConfig(host=host, security="tls")).is_tls


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "manager.example.org"])
def test_plaintext_beyond_loopback_must_be_asked_for(host: str) -> None:
    assert checked(ManagerConfig(host=host)).is_tls
    assert not checked(ManagerConfig(host=host, insecure_plaintext=True)).is_tls
