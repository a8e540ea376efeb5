"""The command that makes all shipped weights: what it fits, in which order, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import __main__ as command
from lab.__main__ import FITS, SHIPPED, Folders, ShippedFit, changes, check_data, chosen, contents


def names(fits: list[ShippedFit]) -> list[str]:
    return [fit.name for fit in fits]


def test_all_are_fitted_where_none_is_named() -> None:
    assert chosen([]) == list(FITS)


def test_named_ones_keep_the_order_in_which_one_needs_another() -> None:
    assert names(chosen(["generations", "learned"])) == ["learned", "generations"]


def test_a_predictor_is_fitted_before_what_is_built_on_it() -> None:
    order = names(list(FITS))
    assert order.index("attainable") < order.index("learned") < order.index("generations")
    assert order.index("attainable") < order.index("mlp")
    assert order[0] == "kernel_counts"  # every other fit reads how many kernels an op launches
    # They are those of what all others predict, and on several GPUs reach beyond those of one.
    assert order[-2:] == ["ranges", "parallel_ranges"]


def test_every_shipped_file_is_written_by_one_fit() -> None:
    shipped = [path for part in ("models", "hosts") for path in (SHIPPED / part).iterdir()]
    assert shipped
    for path in shipped:
        writers = [
            f.name for f in FITS if path.relative_to(SHIPPED).as_posix() in contents(f, SHIPPED)
        ]
        assert len(writers) == 1, (path.name, writers)


def test_an_unknown_name_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        command.main(["fit", "lerned"])
    assert left.value.code == 2
    message = capsys.readouterr().err
    assert "'lerned' (did you mean 'learned'?)" in message


@pytest.mark.parametrize("given", [["zzz"], ["zzz", "--more"]])
def test_a_name_unlike_all_gets_the_list(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(["fit", *given])
    assert "generations" in capsys.readouterr().err


def test_a_fit_that_reads_public_tables_needs_their_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^learned reads .*: give their folder with --data"):
        check_data(chosen(["learned", "workspaces"]), None)
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        check_data(chosen(["learned"]), tmp_path / "nowhere")
    check_data(chosen(["workspaces", "host", "kernel_counts"]), None)


def test_a_missing_table_is_told_before_anything_is_fitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        command.main(["fit", "attainable", "learned", "--data", str(tmp_path)])
    assert left.value.code == 2
    message = capsys.readouterr().err
    assert "attainable, learned reads the public tables" in message
    assert f"the folder {tmp_path} is empty; docs/sources.md says" in message


def made_up(shipped: Path, seen: list[str]) -> list[ShippedFit]:
    """Two fits, of which the first writes a card and the second nothing."""

    def write(folders: Folders) -> None:
        seen.append("first")
        date = len(list(folders.cache.glob("*")))
        (shipped / "first.toml").write_text(f'fitted = "{date}"\nvalue = 1\n')
        (folders.cache / str(date)).touch()

    return [
        ShippedFit("first", "writes a card", write, ("first.toml",)),
        ShippedFit("second", "prints", lambda _: seen.append("second")),
    ]


def test_fits_run_in_order_and_say_what_they_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    folders = Folders(tmp_path, tmp_path / "cache")
    command.run(made_up(tmp_path, seen), folders, tmp_path)
    assert seen == ["first", "second"]
    printed = capsys.readouterr().out
    assert (
        printed.index("first.toml: new") < printed.index("== 2/2 second") < printed.index("nothing")
    )


def test_a_new_date_alone_is_no_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fits, folders = made_up(tmp_path, [])[:1], Folders(tmp_path, tmp_path / "cache")
    command.run(fits, folders, tmp_path)
    command.run(fits, folders, tmp_path)
    assert 'fitted = "1"' in (tmp_path / "first.toml").read_text()
    assert "first.toml: as before" in capsys.readouterr().out


def test_a_changed_number_is_a_change() -> None:
    assert list(changes({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"})) == [
        "a: as before",
        "b: changed",
        "c: new",
    ]


def test_the_list_names_every_fit(capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--list"])
    printed = capsys.readouterr().out
    assert all(f"\n{fit.name}: {fit.about}\n    writes " in printed for fit in FITS)
    assert "python -m lab score distributed: How well" in printed


@pytest.mark.slow
def test_the_fit_of_the_reference_host_gives_the_file_that_ships() -> None:
    from lab.fit.host import OUT, fit, read, reference_costs, to_toml
    from lab.measured.timed import machines

    costs, _ = fit(read())
    assert to_toml(reference_costs(costs), machines()) == OUT.read_text(encoding="utf-8")


def test_counted_kernels_are_written_as_they_ship() -> None:
    from lab.fit.kernel_counts import OUT, to_toml
    from wavecast.ops.costs import COUNTED

    assert to_toml(COUNTED) == OUT.read_text(encoding="utf-8")


def test_ops_seen_too_rarely_or_with_their_own_rule_are_not_counted() -> None:
    from lab.fit.kernel_counts import fit

    seen = {"aten.a": [2, 3, 3], "aten.b": [9, 9], "aten.c": [1] * 5, "aten.index_put": [19] * 9}
    assert fit(seen) == {"aten.a": 3}
