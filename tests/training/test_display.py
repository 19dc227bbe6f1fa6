"""What a person sees while a run trains."""

import io

from rich.console import Console

from softbias.training.display import Bar


def test_eighty_columns_hold_the_bar_the_time_left_and_the_scores():
    bar = Bar()
    stream = io.StringIO()
    bar.progress.live.console = bar.console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    bar.progress.update(bar.task, total=4104, completed=2511)
    bar.epoch({"epoch": 93, "epochs": 152, "val_accuracy": 0.8})
    bar.epoch({"epoch": 94, "epochs": 152})  # not every epoch is validated: the last score stays
    bar.step(2540, {"loss": 0.0864, "images_per_second": 12345.0})
    bar.console.print(bar.progress.make_tasks_table(bar.progress.tasks))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1 and len(lines[0]) <= 80
    assert "2540/4104" in lines[0] and "left epoch 94/152  loss 0.086  validation 80.0%" in lines[0]
    assert lines[0].rstrip().endswith("…"), "what does not fit is cut at the end"
