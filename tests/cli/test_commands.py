"""The command line, run as a user runs it."""

import json
import subprocess
import sys

import pytest

from softbias.cli import main


def softbias(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "softbias", *arguments], capture_output=True, text=True, timeout=120)


def test_version_and_help_need_no_torch():
    code = (
        "import sys; from softbias.cli import main\n"
        "assert main(['--version']) == 0\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert 'torch' not in sys.modules, 'help imports torch'"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("softbias 0.") and "models" in run.stdout


def test_models_says_how_much_of_a_model_is_the_head_that_sees_every_patch(capsys):
    assert main(["models", "arvit_base"]) == 0
    printed = capsys.readouterr().out
    assert "140.51 M" in printed and "132.10 M" in printed and "1,000 classes" in printed
    assert main(["models", "arvit_base", "--num-classes", "4", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["parameters"] == 8_941_768 and row["flattened_head"] == 4 * (256 * 516 + 1)
    assert main(["models", "deit_tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["flattened_head"] == 0


def test_models_prints_a_table_and_json(capsys):
    assert main(["models", "*_nano"]) == 0
    table = capsys.readouterr().out
    assert "convit_nano" in table and "3 × gated, 1 × full" in table
    assert main(["models", "deit_tiny", "--img-size", "32", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["patch"] == 4 and row["parameters"] > 5e6 and row["macs"] > 1e8


def test_a_mistake_is_one_line_and_exit_status_2():
    run = softbias("models", "no-such-model")
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr.strip() == "softbias: no model is named 'no-such-model'; softbias models lists them all"


def test_an_unknown_option_is_refused_with_the_nearest():
    run = softbias("models", "--img-siz", "32")
    assert run.returncode == 2 and "--img-size" in run.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["peers", "--compile", "graphs", "--device", "cpu"], "--compile graphs replays CUDA graphs, and there is no GPU here"),
        (
            ["convit", "--models", "deit_tiny", "--device", "cpu"],
            "no model of the suite convit 'deit_tiny'; did you mean 'convit_tiny'",
        ),
        (["convti"], "no suite 'convti'; did you mean 'convit'"),
    ],
    ids=["graphs", "model", "suite"],
)
def test_bench_refuses_what_it_cannot_measure(capsys, words, message):
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


def test_bench_writes_ratios_with_hardware_and_versions(tmp_path, capsys):
    out = tmp_path / "bench.json"
    arguments = [
        "bench",
        "--models",
        "deit_tiny",
        "--img-size",
        "32",
        "--batch",
        "1",
        "--rounds",
        "3",
        "--mode",
        "inference",
    ]
    with pytest.warns(UserWarning, match="only 4 tokens"):  # timm's model keeps its patch of 16
        assert main([*arguments, "--json", str(out)]) == 0
    written = json.loads(out.read_text())
    ours, peer = written["suites"]["peers"]
    assert ours["ratio"] > 0 and ours["against"] == peer["what"] == "timm:deit_tiny_patch16_224" and "batch 1" in ours["how"]
    assert {"torch", "timm", "hardware", "threads"} <= set(written["environment"])
