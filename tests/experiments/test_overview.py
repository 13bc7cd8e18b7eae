"""The page of a problem's rows at a glance."""

from dpsrm.experiments.overview import overview
from dpsrm.experiments.tables import TableRow


def row(method, error, *, epsilon=3.0, sampling="poisson", adjacency="replace-one", trials=5):
    return TableRow(
        method=method,
        model="CNN4 relu",
        epsilon=epsilon,
        epsilon_proved=epsilon,
        epsilon_with_tuning=None,
        sampling=sampling,
        adjacency=adjacency,
        accountant="pld",
        trials=trials,
        criterion="test_error",
        test_objective=error,
        test_log_loss=error,
        test_error=error,
        seconds=1.0,
        passes=10.0,
        gradients=1.0,
        noise_multiplier=1.0,
        paper=None,
        ci={"test_error": 0.001},
    )


def lines(page):
    return [line for line in page.splitlines() if line.startswith("|")]


def test_methods_stand_below_each_other_and_the_best_is_bold():
    rows = [row("DP-SRM", 0.03), row("DP-SGD", 0.02), row("DP-SRM", 0.025, sampling="wor", trials=6)]
    page = overview("mnist", [*rows, row("SGD (non-private)", 0.01, epsilon=None)])
    head, _, sgd, srm, *paper = lines(page)[:6]
    budgets = [f"{under}, ε = {epsilon}" for under in ("Poisson", "WOR") for epsilon in ("1.2", "3", "7")]
    assert head == f"| | {' | '.join(budgets)} |"
    assert sgd == "| DP-SGD |  | **2.00 ± 0.10** |  |  |  |  |"
    assert srm == "| DP-SRM |  | 3.00 ± 0.10 |  |  | **2.50 ± 0.10** |  |"
    assert [line.split("|")[5:8] for line in paper] == [[" 5.33 ", " 3.81 ", " 2.93 "], [" 4.49 ", " 3.62 ", " 2.91 "]]
    assert "Without privacy: 1.00 ± 0.10 %." in page
    assert "Means of 5 to 6 trials" in page
    assert len(lines(page)) == 6 + 2 + 4, "every row with all its columns at the end"


def test_features_differ_in_adjacency_and_the_paper_has_none():
    page = overview("features-mnist", [row("DP-SGD", 0.02), row("DP-SGD", 0.01, adjacency="add-remove")])
    head, _, sgd, *_ = lines(page)
    assert head == "| | replace-one, ε = 1 | replace-one, ε = 3 | add-remove, ε = 1 | add-remove, ε = 3 |"
    assert sgd == "| DP-SGD |  | **2.00 ± 0.10** |  | **1.00 ± 0.10** |"
    assert "paper's" not in page.split("## Every row")[0]
