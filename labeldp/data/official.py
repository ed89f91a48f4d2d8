"""The facts about each data set: files, rows, classes, digests.

A sha256 was computed here, from files that match what their authors published. An md5 is quoted from public code
and has not met its file here: several projects agree on KMNIST, ml-1m.zip and the CIFAR archives; CIFAR-100's
two .bin files come from one (rai-project/dldataset, whose CIFAR-10 values are right). CINIC-10's folders and
Criteo's table have no digest that we know; their rows are counted.
"""

from __future__ import annotations

from labeldp.data.locate import Official
from labeldp.data.samples import ADULT_CLASSES

_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def _digests(algorithm: str, names: tuple[str, ...], *values: str) -> dict[str, str]:
    return {name: f"{algorithm}:{value}" for name, value in zip(names, values, strict=True)}


MNIST = Official(
    name="mnist",
    classes=tuple("0123456789"),
    site="http://yann.lecun.com/exdb/mnist/",
    files=_IDX,
    rows=(60_000, 10_000),
    digests=_digests(
        "sha256",
        _IDX,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)

FASHION_MNIST = Official(
    name="fashion_mnist",
    classes=_CLOTHES,
    site="https://github.com/zalandoresearch/fashion-mnist",
    files=_IDX,
    rows=(60_000, 10_000),
    digests=_digests(
        "sha256",
        _IDX,
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    elsewhere=("/usr/share/datasets/fashion-mnist",),
    note="Debian's package dataset-fashion-mnist is found by itself.",
)

KMNIST = Official(
    name="kmnist",
    classes=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    site="https://github.com/rois-codh/kmnist",
    files=_IDX,
    rows=(60_000, 10_000),
    # Only the compressed files have published digests; unpacked ones are checked by their structure.
    digests=_digests(
        "md5",
        tuple(f"{name}.gz" for name in _IDX),
        "bdb82020997e1d708af4cf47b453dcf7",
        "e144d726b3acfaa3e44228e80efcd344",
        "5c965bf0a639b31b8f53240b1b52f4d7",
        "7320c461ea6c1c855c0b718fb2a4b134",
    ),
)

_CIFAR10_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_HUNDRED_THINGS = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_TEN_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

CIFAR10 = Official(
    name="cifar10",
    classes=_TEN_THINGS,
    site="https://www.cs.toronto.edu/~kriz/cifar.html",
    files=_CIFAR10_FILES,
    rows=(50_000, 10_000),
    digests={
        **_digests(
            "sha256",
            _CIFAR10_FILES,
            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        ),
        "cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530",
    },
    archive="cifar-10-binary.tar.gz",
    inside="cifar-10-batches-bin",
    pickled=("data_batch_1", "cifar-10-batches-py", "cifar-10-python.tar.gz"),
)

CIFAR100 = Official(
    name="cifar100",
    classes=tuple(_HUNDRED_THINGS.split()),
    site="https://www.cs.toronto.edu/~kriz/cifar.html",
    files=("train.bin", "test.bin"),
    rows=(50_000, 10_000),
    digests={
        "train.bin": "md5:6172c7755cfe09b2fe270c85cebc1b15",
        "test.bin": "md5:4499cfba6c016c1be1438163640a0898",
        "cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8",
    },
    archive="cifar-100-binary.tar.gz",
    inside="cifar-100-binary",
    pickled=("train", "cifar-100-python", "cifar-100-python.tar.gz"),
)

CINIC10 = Official(
    name="cinic10",
    classes=_TEN_THINGS,
    site="https://datashare.ed.ac.uk/handle/10283/3192",
    files=(),
    rows=(90_000, 90_000),
    archive="CINIC-10.tar.gz",
    inside="CINIC-10",
    note="Unpack it there: the loader reads the PNG files in train/CLASS/ and test/CLASS/.",
)

MOVIELENS_1M = Official(
    name="movielens_1m",
    classes=("1", "2", "3", "4", "5"),
    site="https://grouplens.org/datasets/movielens/1m/",
    files=("ratings.dat",),
    rows=(1_000_209,),
    digests={"ml-1m.zip": "md5:c4d9eecfca2ab87c1945afe126590906"},
    archive="ml-1m.zip",
    inside="ml-1m",
)

ADULT = Official(
    name="adult",
    classes=ADULT_CLASSES,
    site="https://archive.ics.uci.edu/dataset/2/adult",
    files=("adult.data", "adult.test"),
    rows=(32_561, 16_281),
    digests=_digests(
        "sha256",
        ("adult.data", "adult.test"),
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    ),
)

CRITEO_ATTRIBUTION = Official(
    name="criteo_attribution",
    classes=("not attributed", "attributed"),
    site="https://ailab.criteo.com/criteo-attribution-modeling-bidding-dataset/",
    files=("criteo_attribution_dataset.tsv",),
    rows=(16_468_027,),
    note="The download unpacks to criteo_attribution_dataset.tsv.gz, which is read as it is.",
)
