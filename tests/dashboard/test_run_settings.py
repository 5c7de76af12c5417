"""Settings of runs by dotted name, and those in which runs differ."""

from __future__ import annotations

from finrl_pod_app.dashboard.queries.run_settings import differences, differing_names, dotted_settings


def test_settings_have_dotted_names() -> None:
    settings = dotted_settings(
        {"seed": 7, "agent": {"gamma": 0.9, "net": {"layers": [64, 64]}}, "name": "a", "none": None}
    )
    assert settings == {"seed": "7", "agent.gamma": "0.9", "agent.net.layers": "[64, 64]", "name": "a", "none": ""}


def test_differences_are_texts_with_one_column_per_run() -> None:
    settings = {
        "one": {"seed": "7", "same": "[1, 2]", "test": "true"},
        "two": {"seed": "8", "same": "[1, 2]", "agent.tau": "", "test": "false"},
    }
    assert differing_names(settings) == ["seed", "test"]
    table = differences(settings)
    assert table.to_dict("list") == {"setting": ["seed", "test"], "one": ["7", "true"], "two": ["8", "false"]}
    assert differences({"one": settings["one"]}).empty
