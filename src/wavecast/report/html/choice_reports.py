"""The page about a choice of GPUs for a training."""

from __future__ import annotations

from wavecast.planning.cost import TrainingPlan
from wavecast.planning.selection import Selection
from wavecast.report.costs import plan_text
from wavecast.report.html.choice_charts import choice_chart
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import Html, bullets, element, escaped, joined, table
from wavecast.report.html.reports import sentence
from wavecast.report.recipes import ANY_STEP, AskedStep, recipe
from wavecast.report.selections import choice_columns, choice_lines, verdict
from wavecast.report.tables import ANY_WIDTH, fitting

_LISTED = 40
_METHOD = (
    "The time of a step is predicted for each GPU and batch, and multiplied by the number of "
    "steps; its error is the same in every step, so it does not average out.",
    "Two choices cannot be told apart if their ranges overlap too far, part of their errors being "
    "the same.",
    "Money is that of whole machines, for the whole time. Each price has its date.",
)


def choice_report(
    title: str,
    selection: Selection,
    plan: TrainingPlan,
    unit: str,
    limits: tuple[float | None, float | None] = (None, None),
    asked: AskedStep = ANY_STEP,
) -> Report:
    """The verdict, time and money of all choices, and why the others lost.

    Args:
        title: what is trained.
        selection: the choices in order.
        plan: how long the training is.
        unit: what the step counts: "samples".
        limits: the budget in USD and the deadline in seconds; None for none.
        asked: the step, as the recipe names it.
    """
    rows = [*selection.ranked, *selection.beyond][:_LISTED]
    sections = []
    told: list[str] = choice_lines(selection, rows, set())
    if rows:
        columns = fitting(choice_columns(rows, selection), ANY_WIDTH)
        told = choice_lines(selection, rows, {column.name for column in columns})
        listed = table(columns, caption="The choices, best first")
        content: Html = joined([choice_chart(selection, *limits), listed])
        lead = f"{sentence(plan_text(plan, unit))} The best comes first."
        sections.append(Section("choices", "The choices", content, lead, "choices"))
    if made := recipe(selection, asked):
        steps = bullets(map(sentence, made))
        sections.insert(0, Section("recipe", "The recipe", steps, short="recipe"))
    notes = bullets(map(sentence, told))
    sections.append(Section("notes", "What the marks mean, and what lost", notes, short="notes"))
    how = bullets(_METHOD)
    sections.append(Section("method", "How this was chosen", how, short="how"))
    return Report(title, _told(selection), tuple(sections))


def _told(selection: Selection) -> Html:
    """The choice in a sentence, with its name marked."""
    text = verdict(selection)
    if selection.best is None:
        return escaped(text)
    before, name, after = text.partition(selection.best.name)
    return joined([before, element("strong", name), after])
