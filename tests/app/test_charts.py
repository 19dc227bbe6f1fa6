"""The charts of the app's runs, as data and as the server sends them."""

from softbias.app.charts import gates_chart, training_charts

EPOCHS = [{"epoch": e, "loss": 3.0 / e, "accuracy": 0.2 * e, "val_accuracy": 0.1 * e} for e in (1, 2, 3)]
GATES = [{"epoch": e, "step": 10 * e, "layers": {"0": [0.7, 0.7 + e / 100], "1": [0.5, 0.6]}} for e in (1, 2, 3)]


def test_training_and_validation_of_every_run_are_drawn_in_its_color():
    loss, accuracy = training_charts({"a": EPOCHS, "b": EPOCHS[:1]})
    assert [(one.kind, one.number) for one in loss.series] == [("curve", 0), ("curve", 1)]
    assert [(one.kind, one.number) for one in accuracy.series] == [("curve", 0), ("line", 0), ("curve", 1), ("line", 1)]
    assert list(accuracy.series[1].y) == [0.1, 0.2, 0.1 * 3] and training_charts({"c": []}) == []


def test_gates_have_a_line_per_head_and_a_mark_at_the_checkpoint():
    chart = gates_chart("run", GATES, {"epoch": 2, "step": 20})
    assert [one.number for one in chart.series] == [0, 0, 1, 1, None] and list(chart.series[-1].x) == [2, 2]
    assert gates_chart("run", [], None) is None and len(gates_chart("run", GATES, None).series) == 4


def test_the_server_draws_them(served):
    everything, gates = (served.ask(path)[2].decode() for path in ("/api/charts", "/api/charts?model=0&checkpoint=1"))
    assert everything.count("<figure") == 2 and 'data-chart="loss"' in everything and 'style="' not in everything
    assert gates.count("<figure") == 1 and "k-reference" in gates
    assert served.ask("/api/charts?model=x")[0] == 400
