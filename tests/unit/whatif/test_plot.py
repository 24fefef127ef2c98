"""The picture is well-formed, stands alone, and shows every policy."""

from xml.etree import ElementTree

from tests.support.whatif import joins, recording, scenario
from varuna_manager.whatif import Ours, Paper, compare
from varuna_manager.whatif.plot import svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(length_s: float) -> ElementTree.Element:
    lines = (*joins(4), f"{length_s / 2:.3f},remove,n0")
    compared = compare(scenario(recording(*lines, length_s=length_s)), [Ours(), Paper(name="a<b")])
    return ElementTree.fromstring(svg(compared, title="job & pool", batch_size=64))


def test_it_names_the_policies_and_their_layouts() -> None:
    picture = drawn(1000.0)
    words = {element.text for element in picture.iter(f"{SVG}text")}
    assert {"job & pool", "ours", "a<b", "nodes", "samples/s"} <= words
    assert "5 min" in words
    titles = [element.text or "" for element in picture.iter(f"{SVG}title")]
    assert any(title.startswith("moving from 0 s") for title in titles)


def test_it_refers_to_nothing_outside() -> None:
    text = ElementTree.tostring(drawn(100_000.0)).decode()
    assert "href" not in text
    assert "url(" not in text
