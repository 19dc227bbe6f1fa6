"""`softbias probe` with a run, a probe, and no other option."""

from softbias.cli import main


def test_probe_announces_as_many_images_as_there_are_and_writes_into_the_folder_probes(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["probe", str(run), "--probes", "shift", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "shift: run: 12 pictures, " in printed and "1,000 pictures" not in printed
    assert "\nprobes/shift.csv\n" in printed and (tmp_path / "probes" / "shift.csv").is_file()
