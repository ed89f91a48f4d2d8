import pickle
import warnings
import zipfile
from dataclasses import replace

import pytest
import torch
from torch import nn

from labeldp.features import encoders
from labeldp.features.cache import read_metadata, read_tensors
from labeldp.features.encoders import Encoder, load_encoder, save_encoder
from labeldp.features.extract import extract
from labeldp.models.zoo import mnist_cnn, resnet18_v2


def body(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


def images(n=40, seed=0):
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_outputs_are_standardised_and_the_model_is_left_alone():
    model = body().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    map_ = Encoder(model).fit(images(400))
    rows = map_.features(images(400))
    assert rows.shape == (400, map_.dim) == (400, 5)
    assert torch.allclose(rows.mean(0), torch.zeros(5), atol=1e-4)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_later_training_does_not_reach_a_fitted_map():
    model = body()
    map_ = Encoder(model).fit(images())
    rows = map_.features(images())
    with torch.no_grad():
        model[0].weight.zero_()
    assert torch.equal(map_.features(images()), rows)


def test_inputs_are_scaled_as_told():
    mean, spread = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    plain = Encoder(body(), standardise=False)
    scaled = Encoder(body(), mean, spread, standardise=False).fit(images()).features(images())
    by_hand = (images() - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(spread).view(3, 1, 1)
    assert torch.allclose(scaled, plain.fit(by_hand).features(by_hand), atol=1e-6)
    raw = (255 * images()).to(torch.uint8)
    assert torch.allclose(plain.fit(raw).features(raw), plain.fit(raw / 255).features(raw / 255), atol=1e-6)


def test_unit_length_components_and_chunks(monkeypatch):
    rows = Encoder(body(), unit=True, standardise=False).fit(images()).features(images())
    assert torch.allclose(rows.norm(dim=1), torch.ones(40), atol=1e-5)
    whole = Encoder(body(), dims=2).fit(images()).features(images())
    monkeypatch.setattr(encoders, "_CPU_CHUNK", 7)
    assert whole.shape == (40, 2)
    assert torch.allclose(Encoder(body(), dims=2).fit(images()).features(images()), whole, atol=1e-4)


def test_the_cache_knows_weights_apart(tmp_path):
    first = extract(Encoder(body(0)), images(), cache=tmp_path)[0]
    second = extract(Encoder(body(1)), images(), cache=tmp_path)[0]
    assert not torch.allclose(first, second)
    assert torch.equal(extract(Encoder(body(0)), images(), cache=tmp_path)[0], first)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("half", [True, False])
def test_saved_and_loaded(tmp_path, half):
    path = tmp_path / "b.safetensors"
    save_encoder(path, Encoder(body(3), mean=(0.1, 0.2, 0.3), spread=None), half=half, notes={"epochs": "5"})
    loaded = load_encoder(path, body(4))
    assert not loaded.model.training
    assert (loaded.mean, loaded.spread) == ((0.1, 0.2, 0.3), None)
    assert read_metadata(path)["epochs"] == "5"
    difference = (loaded.model(images()) - body(3).eval()(images())).abs().max()
    assert (difference == 0) if not half else (0 < difference < 1e-2)
    assert read_tensors(path)["1.num_batches_tracked"].dtype == torch.int64


def test_the_body_of_a_whole_network(tmp_path):
    torch.manual_seed(0)
    model = mnist_cnn(10)
    torch.save(model.state_dict(), tmp_path / "whole.pt")
    loaded = load_encoder(tmp_path / "whole.pt", mnist_cnn(3).body)
    assert loaded.mean is None
    assert torch.equal(loaded.model(torch.ones(1, 1, 28, 28)), model.eval().body(torch.ones(1, 1, 28, 28)))


def test_half_precision_resnet_18_fits_into_25_megabytes(tmp_path):
    save_encoder(tmp_path / "r.safetensors", Encoder(resnet18_v2(10).body))
    assert (tmp_path / "r.safetensors").stat().st_size < 25e6


class Reader(nn.Module):
    """An encoder that makes features of the first bytes of a file: of a table's labels, say."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def forward(self, rows: torch.Tensor):
        found = torch.from_file(self.path, False, 16, dtype=torch.uint8)
        return rows.flatten(1)[:, :1] + found.float().unsqueeze(0)


def test_a_network_that_opens_files_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("label\nyes\nno\nyes\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Reader(str(tmp_path / "t.csv"))).save(str(tmp_path / "net.pt"))
    with pytest.raises(ValueError, match="reads or writes files"):
        load_encoder(tmp_path / "net.pt")


@pytest.mark.parametrize(
    ("name", "code"),
    [("code/__torch__.py", b'ops .aten\n. save(x, "f")'), ("CODE/b.PY", b"torch. from_file"), ("model.json", b"{}")],
)
def test_what_another_reader_might_take_for_code_is_refused(tmp_path, name, code):
    """In place of the code of a plain network, or beside it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)).save(str(tmp_path / "net.pt"))
    with zipfile.ZipFile(tmp_path / "net.pt") as plain, zipfile.ZipFile(tmp_path / "odd.pt", "w") as odd:
        for each in plain.namelist():
            odd.writestr(each, code if each == f"net/{name}" else plain.read(each))
        if f"net/{name}" not in plain.namelist():
            odd.writestr(f"net/{name}", code)
    assert load_encoder(tmp_path / "net.pt")
    with pytest.raises(ValueError, match="reads or writes files"):
        load_encoder(tmp_path / "odd.pt")


def test_a_network_from_torchscript(tmp_path):
    path = tmp_path / "network.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(body(2).eval(), images(2)).save(path)
    loaded = load_encoder(path)
    map_ = replace(loaded, standardise=False).fit(images())
    assert torch.allclose(map_.features(images()), body(2).eval()(images()), atol=1e-5)
    assert loaded.fingerprint() == load_encoder(path).fingerprint()
    assert loaded.fingerprint() != Encoder(body(2)).fingerprint()


def exported(model, path=None):
    dynamic = ({0: torch.export.Dim("n", min=1, max=4096)},)
    program = torch.export.export(model.eval(), (images(4),), dynamic_shapes=dynamic)
    if path is not None:
        torch.export.save(program, path)
    return program


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch's own, on copying
def test_exported_files_are_refused_but_their_modules_are_taken(tmp_path):
    program = exported(body(), tmp_path / "network.pt2")
    with pytest.raises(ValueError, match="can run code"):
        load_encoder(tmp_path / "network.pt2")
    map_ = Encoder(program.module(), standardise=False).fit(images())
    assert torch.allclose(map_.features(images()), body().eval()(images()), atol=1e-5)


class Touch:
    """A pickle that leaves a trace when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("network", [None, body()], ids=["alone", "with-body"])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".pkl"])
def test_no_file_can_run_code(tmp_path, suffix, network):
    trace, path = tmp_path / "trace", tmp_path / f"evil{suffix}"
    writers = [lambda: torch.save(Touch(trace), path), lambda: path.write_bytes(pickle.dumps(Touch(trace), protocol=2))]
    for write in writers:
        write()
        with pytest.raises((ValueError, pickle.UnpicklingError)):
            load_encoder(path, network)
        assert not trace.exists()


def test_weights_that_do_not_fit_are_refused(tmp_path):
    save_encoder(tmp_path / "w.safetensors", Encoder(nn.Linear(2, 3)))
    with pytest.raises(ValueError, match=r"w\.safetensors lacks 9 of 9"):
        load_encoder(tmp_path / "w.safetensors", body())
    with pytest.raises(ValueError, match=r"w\.safetensors holds weights of no network that is known here"):
        load_encoder(tmp_path / "w.safetensors")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="state dict"):
        load_encoder(tmp_path / "list.pt", body())


def test_outputs_must_be_rows():
    with pytest.raises(ValueError, match="outputs have shape"):
        Encoder(nn.Conv2d(3, 2, 3)).fit(images())
