"""HTML in which every text is escaped."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from wavecast.report.html.markup import Html, bullets, data_element, element, escaped, html_table
from wavecast.report.tables import Column

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' \x1b[2J\u202e"


def test_text_is_escaped_and_html_is_not() -> None:
    inner = element("b", "<i>")
    assert inner == "<b>&lt;i&gt;</b>"
    assert element("p", inner, "&") == "<p><b>&lt;i&gt;</b>&amp;</p>"
    assert escaped(Html("<br>")) == "<br>"
    assert escaped(None) == ""


def test_attributes_are_escaped_and_named() -> None:
    made = element("a", class_='x"y', aria_label="<", hidden=True, title=None, width=1.50)
    assert made == '<a class="x&quot;y" aria-label="&lt;" hidden width="1.5"></a>'


@given(st.text())
def test_no_text_becomes_markup(text: str) -> None:
    made = element("p", text, title=text)
    assert len(re.findall("<", made)) == 2
    assert made.count('"') == 2


@given(st.text() | st.just(HOSTILE))
def test_data_cannot_leave_its_element(text: str) -> None:
    made = data_element("data", {"name": text})
    content = made.split(">", 1)[1].rsplit("<", 1)[0]
    assert not set("<>&\u2028\u2029") & set(content)
    assert json.loads(content) == {"name": text}


def test_a_table_names_its_rows_and_columns() -> None:
    columns = [Column("GPU", ["l4", HOSTILE], left=True), Column("step", ["1 ms", "2 ms"])]
    made = html_table(columns, caption="Times", sorts=True)
    assert made.count('scope="col"') == 2
    assert made.count('scope="row"') == 2
    assert "<caption" in made
    assert "<script" not in made
    assert made.count("<button") == 2


def test_no_bullets_without_lines() -> None:
    assert bullets([]) == ""
    assert bullets(["a<"]) == "<ul><li>a&lt;</li></ul>"
