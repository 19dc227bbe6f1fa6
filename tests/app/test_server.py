"""The page's server over real HTTP on loopback: what it answers, what it refuses, and that junk never makes it fall."""

import http.client
import io
import json
import random
import shutil
import socket
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

import softbias
from softbias.app import server as module
from softbias.app.server import bind
from softbias.app.shelf import Shelf
from softbias.cli import main
from softbias.opening import open_model


def ask(served, path, method="GET", body=None, headers=None):
    """Status, headers and body of a request, with exactly the headers given."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def get(served, path):
    status, _, body = ask(served, path)
    assert status == 200, body
    return json.loads(body)


def png(side=20, color=(200, 30, 40)):
    stream = io.BytesIO()
    Image.new("RGB", (side, side), color).save(stream, "PNG")
    return stream.getvalue()


def upload(served, content, kind="image/png", **headers):
    return ask(served, "/api/pictures", "POST", content, {"Content-Type": kind, **headers})


def bomb(width=60_000, height=60_000):
    """A PNG of a few hundred bytes that says it has 3.6 billion pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def test_the_state_lists_models_checkpoints_and_pictures(served, run):
    state = get(served, "/api/state")
    first, second, third = state["models"]
    assert first["name"] == run.name and first["weights"] == "trained" and first["report"] and first["run"]
    assert [place["epoch"] for place in first["checkpoints"]] == [0, 1, 2, 3]
    assert second["weights"] == "untrained" == third["weights"] and not second["checkpoints"]
    assert state["data"]["pictures"] > 3
    assert str(run.parent) not in json.dumps(state)  # no path of this machine


def test_a_look_is_what_explain_says(served, run, shelf):
    look = get(served, "/api/look?model=0&picture=d1")
    seen = softbias.explain(run, shelf.picture("d1"))
    assert look["label"] == seen.label and look["classes"][0]["p"] == pytest.approx(seen.confidence, abs=1e-5)
    assert look["grid"] == [8, 8] and [layer["kind"] for layer in look["layers"]] == ["gated"] * 3 + ["full"]
    assert look["layers"][1]["gates"] == pytest.approx(seen.gates[1].tolist(), abs=1e-5)
    assert look["relevance"][0]["values"] == pytest.approx(seen.relevance["rollout"].flatten().tolist(), abs=1e-5)
    assert look["truth"] in ("blue", "green", "red")


def test_rows_are_the_maps_of_the_patch_layer_by_layer_and_then_the_places(served, run, shelf):
    seen = softbias.explain(run, shelf.picture("d0"), query=(2, 3))
    _, headers, body = ask(served, "/api/rows?model=0&picture=d0&query=19")
    found = np.frombuffer(body, np.float32).reshape(-1, 8, 8)
    expected = np.concatenate([*seen.looks().values(), *seen.biases().values()])
    assert found.shape == (4 * 4 + 3 * 4, 8, 8) and found == pytest.approx(expected, abs=1e-5)
    _, _, body = ask(served, "/api/rows?model=0&picture=d0&query=token")
    assert np.frombuffer(body, np.float32).reshape(-1, 8, 8) == pytest.approx(seen.looks_of_class_token()[3], abs=1e-5)
    assert headers["content-type"] == "application/octet-stream"


def test_checkpoints_are_the_model_as_it_was(served, run, shelf):
    start, first, last, final = (
        get(served, f"/api/look?model=0&picture=d0{at}")["classes"]
        for at in ("&checkpoint=0", "&checkpoint=1", "&checkpoint=3", "")
    )
    assert start != first != final
    p = {one["name"]: one["p"] for one in last}  # the last checkpoint is the final model, unless an earlier epoch was better
    assert sum(p.values()) == pytest.approx(1, abs=1e-4)
    training = get(served, "/api/training?model=0")
    assert [row["epoch"] for row in training["gates"]] == [1, 2, 3] and len(training["gates"][0]["layers"]) == 3
    early = shelf.models[0].at(1).subject.model.blocks[0].attn.gate.sigmoid().tolist()
    assert training["gates"][0]["layers"]["0"] == pytest.approx(early)
    assert [row["epoch"] for row in training["epochs"]] == [1, 2, 3]
    assert get(served, "/api/training?model=1") == {"epochs": [], "gates": [], "test": None, "report": False}


def test_a_damaged_checkpoint_is_refused_and_the_others_live(run, monkeypatch, tmp_path):
    import shutil

    monkeypatch.setenv("SOFTBIAS_CACHE", str(run.parent / "cache"))
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    damaged = sorted((copy / "checkpoints").glob("step-*"))[0] / "state.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-7] + b"garbage")
    shelf = Shelf([copy])
    with pytest.raises(ValueError, match="damaged"):
        shelf.look(0, 1, "d0")
    assert shelf.look(0, 2, "d0").maps


def test_a_checkpoint_that_training_removes_in_the_meantime_is_left_out(run, monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTBIAS_CACHE", str(run.parent / "cache"))
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    shelf = Shelf([copy])
    shutil.rmtree(sorted((copy / "checkpoints").glob("step-*"))[0])
    assert [row["epoch"] for row in shelf.models[0].gates()] == [2, 3]
    with pytest.raises(ValueError, match="damaged"):
        shelf.look(0, 1, "d0")


def test_a_study_stands_for_its_finished_runs(run, tmp_path):
    from softbias.app.shelf import unfolded

    study = tmp_path / "study"
    (study / "runs" / "stopped").mkdir(parents=True)
    (study / "study.yaml").write_text("name: s\ndata: [fashion]\narms: [convit_nano]\n")
    (study / "runs" / "stopped" / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    with pytest.raises(ValueError, match="no finished run"):
        unfolded(study)
    shutil.copytree(run, study / "runs" / "done")
    assert unfolded(study) == [study / "runs" / "done"]
    assert unfolded(run) == [run] and unfolded("ibit_nano") == ["ibit_nano"]


def test_a_model_without_maps_is_served_too(served):
    look = get(served, "/api/look?model=2&picture=d0")
    assert (
        look["grid"] is None
        and look["layers"] == []
        and [way["method"] for way in look["relevance"]] == ["gradients", "grad-cam"]
    )
    assert ask(served, "/api/rows?model=2&picture=d0&query=0")[0] == 404


def test_a_picture_of_ones_own_is_kept_and_shown_as_the_model_sees_it(served):
    status, _, body = upload(served, png(50))
    assert status == 201
    name = json.loads(body)["id"]
    status, headers, body = ask(served, f"/api/picture/{name}")
    assert status == 200 and headers["content-type"] == "image/png" and Image.open(io.BytesIO(body)).size == (50, 50)
    seen = Image.open(io.BytesIO(ask(served, f"/api/picture/{name}?model=0")[2]))
    assert seen.size == (32, 32) and seen.getpixel((5, 5)) == (200, 30, 40)
    assert get(served, f"/api/look?model=1&picture={name}")["truth"] is None


def test_every_answer_forbids_code_from_elsewhere(served):
    for path in ("/", "/api/state", "/page/app.js", "/nothing", "/api/picture/d0"):
        _, headers, _ = ask(served, path)
        assert "default-src 'none'" in headers["content-security-policy"] and "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
    _, headers, body = ask(served, "/report/0")
    assert b"softbias" in body and "sandbox" in headers["content-security-policy"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1.evil.example:{port}"},
        {"Host": "127.0.0.1:1"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:1"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_foreign_hosts_and_origins_are_refused(served, headers):
    given = {name: value.format(port=served.port) for name, value in headers.items()}
    for path in ("/", "/api/state"):
        assert ask(served, path, headers=given)[0] == 403
    assert upload(served, png(), **given)[0] == 403


def test_the_pages_own_host_and_origin_are_served(served):
    for host in (f"127.0.0.1:{served.port}", f"localhost:{served.port}"):
        assert (
            ask(served, "/api/state", headers={"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"})[0]
            == 200
        )


def test_it_listens_on_loopback_alone():
    listener = bind(0)
    assert listener.getsockname()[0] == "127.0.0.1"
    listener.close()


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"", "image/png", 422),
        (b"junk" * 99, "image/png", 422),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", 422),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "image/x-eps", 422),
        (png()[:60], "image/png", 422),
        (bomb(), "image/png", 422),
        (bomb(8000, 8000), "image/png", 422),
        (png(), "text/html", 415),
        (png(), "", 415),
        (bytes(16 * 2**20 + 1), "image/png", 413),
    ],
)  # fmt: skip
def test_only_pictures_of_a_decent_size_are_taken(served, content, kind, status):
    found, _, body = upload(served, content, kind)
    assert found == status and json.loads(body)["error"]
    assert get(served, "/api/state")


def test_a_body_without_an_announced_length_is_cut_off_at_the_limit(served, monkeypatch):
    monkeypatch.setattr(module, "MAX_UPLOAD", 1000)
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as line:
        head = ["POST /api/pictures HTTP/1.1", f"Host: 127.0.0.1:{served.port}", "Content-Type: image/png"]
        head += ["Transfer-Encoding: chunked"]
        line.sendall("\r\n".join([*head, "", ""]).encode() + b"800\r\n" + bytes(0x800) + b"\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 413")
    assert get(served, "/api/state")


def test_uploads_and_maps_are_not_kept_without_end(shelf, monkeypatch):
    names = [shelf.upload(png(4 + number)) for number in range(30)]
    assert len(shelf.uploads) == 24
    with pytest.raises(ValueError, match="any more"):
        shelf.picture(names[0])
    monkeypatch.setattr("softbias.app.shelf.MEMORY", 1)
    shelf.seen.clear()
    for number in range(3):
        shelf.look(0, None, f"d{number}")
    assert len(shelf.seen) == 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/look", 400), ("/api/look?model=0", 400), ("/api/look?model=9&picture=d0", 404),
        ("/api/look?model=-1&picture=d0", 400), ("/api/look?model=0&model=1&picture=d0", 400),
        ("/api/look?model=0&picture=/etc/passwd", 400),
        ("/api/look?model=0&picture=d99999", 404), ("/api/look?model=0&picture=d0&checkpoint=99", 404),
        ("/api/look?model=0&picture=d0&target=99", 404), ("/api/look?model=1&picture=d0&checkpoint=0", 404),
        ("/api/rows?model=0&picture=d0", 400), ("/api/rows?model=0&picture=d0&query=64", 404),
        ("/api/rows?model=0&picture=d0&query=²", 400), ("/api/picture/..%2f..%2fetc%2fpasswd", 404), ("/api/picture/x", 400),
        ("/page/../server.py", 404), ("/page/%2e%2e/server.py", 404), ("/page/index.html", 404), ("/report/1", 404),
        ("/report/x", 400), ("/api/training", 400), ("/api/training?model=1e3", 400), ("/api/state/", 404),
        ("/favicon.ico", 404),
    ],
)  # fmt: skip
def test_requests_that_make_no_sense_get_a_sentence(served, path, status):
    from urllib.parse import quote

    found, _, body = ask(served, quote(path, safe="/?&=%.+-~"))
    assert found == status and json.loads(body)["error"]


def test_other_methods_are_refused(served):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert ask(served, "/api/state", method)[0] == 405
    assert ask(served, "/api/pictures")[0] == 405


def test_six_hundred_malformed_requests_get_no_5xx_and_the_server_lives(served):
    """A seeded loop: mangled paths, parameters, headers, methods and bodies, and raw bytes that are no HTTP at all."""
    chance = random.Random(0)
    paths = [
        "/",
        "/api/state",
        "/api/look",
        "/api/rows",
        "/api/training",
        "/api/pictures",
        "/api/picture/",
        "/page/",
        "/report/",
    ]
    names = ["model", "picture", "checkpoint", "query", "target", "x", "", "model[]", "model%00"]
    values = [
        "0",
        "1",
        "-1",
        "99",
        "d0",
        "u0",
        "d",
        "9" * 40,
        "1e9",
        "NaN",
        "null",
        "",
        "%00",
        "%ff",
        "../../x",
        "token",
        "0.5",
        "%d9%a3",
        "d0%0a",
        "[]",
        "{}",
        "a" * 3000,
    ]
    bodies = [
        b"",
        b"{}",
        b"\x89PNG\r\n\x1a\n" + b"\0" * 40,
        b"GIF89a" + b"\xff" * 30,
        b"\xff\xd8\xff" + b"\0" * 50,
        png()[:45],
        bytes(chance.randbytes(300)),
    ]
    kinds = ["image/png", "image/", "application/octet-stream", "multipart/form-data; boundary=x", "text/plain", "\xff", ""]
    seen: dict[int, int] = {}
    for _ in range(450):
        path = chance.choice(paths) + chance.choice(["", "", chance.choice(values), "%2e%2e%2f", "//"])
        query = "&".join(f"{chance.choice(names)}={chance.choice(values)}" for _ in range(chance.randrange(5)))
        headers = {"Content-Type": chance.choice(kinds)} if chance.random() < 0.5 else {}
        if chance.random() < 0.2:
            headers[
                chance.choice(["Range", "If-None-Match", "Accept-Encoding", "Content-Encoding", "Cookie", "If-Modified-Since"])
            ] = chance.choice(values)
        if chance.random() < 0.1:
            headers["Range"] = chance.choice(["bytes=5-1", "bytes=0-,0-,0-", "bytes=-", "bytes=99999999-", "lines=1"])
        method = chance.choice(["GET", "GET", "GET", "POST", "POST", "HEAD", "PUT", "OPTIONS", "BREW"])
        target = "".join(letter if ord(letter) < 128 else f"%{ord(letter) & 255:02x}" for letter in f"{path}?{query}")
        status, _, _ = ask(served, target, method, chance.choice(bodies), headers)
        seen[status] = seen.get(status, 0) + 1
    assert max(seen) < 500 and seen.get(400, 0) > 30, seen
    for _ in range(150):
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as line:
            start = chance.choice(
                [
                    b"",
                    b"GET / HTTP/1.1\r\n",
                    b"POST /api/pictures HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999\r\n\r\n",
                    b"\x16\x03\x01",
                ]
            )
            line.sendall(start + chance.randbytes(chance.randrange(60)) + chance.choice([b"", b"\r\n\r\n"]))
            line.shutdown(socket.SHUT_WR)
            answer = line.recv(64)
            assert not answer.startswith(b"HTTP/1.1 5"), (start, answer)
    assert get(served, "/api/state")["models"]


def test_only_safetensors_are_loaded(run, tmp_path):
    """A model folder whose weights are pickled is refused, not unpickled."""
    import shutil

    import torch

    shutil.copytree(run / "model", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save({}, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"no model\.safetensors"):
        open_model(tmp_path / "model")
    shutil.copy(tmp_path / "model" / "pytorch_model.bin", tmp_path / "model" / "model.safetensors")
    with pytest.raises(Exception, match="header"):
        open_model(tmp_path / "model")


def test_a_taken_port_and_missing_models_are_one_line(capsys, tmp_path):
    assert main(["app", str(tmp_path / "none"), "--no-browser"]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["app", "convit_nano", "--port", "70000"]) == 2
    assert "from 0 (any free one) to 65535" in capsys.readouterr().err
    listener = bind(0)
    listener.listen()
    with pytest.raises(ValueError, match="cannot be had"):
        bind(listener.getsockname()[1])
    listener.close()


def test_the_start_is_the_model_that_training_began_with(shelf, run):
    import torch

    from softbias.models import create_model
    from softbias.training.run import RunDirectory

    torch.manual_seed(RunDirectory(run).spec().seed)
    fresh = create_model("convit_nano", num_classes=3, img_size=shelf.models[0].opened.img_size)
    start = shelf.models[0].at(0)
    assert start.subject.weights == "untrained"
    for name, tensor in start.subject.model.state_dict().items():
        assert torch.equal(tensor, fresh.state_dict()[name]), name
