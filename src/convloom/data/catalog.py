"""What each named data set is: files, sizes, digests, sources, classes, normalisation.

Digests are SHA-256 of a file's decompressed content. Those of MNIST and CIFAR-10 were computed
from files whose published MD5 had been checked, those of Fashion-MNIST from Debian's package.
For CIFAR-100 only the MD5 of the archive is published: what is fetched is checked against that,
and the SHA-256 of the files in it is recorded in the cache (``fetch.RECORD``).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from convloom.data.errors import DataError


@dataclass(frozen=True)
class KnownFile:
    """One file of a set: its name when not compressed, its content's size and digest.

    ``sha256`` is None where no digest is known.
    """

    name: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class Download:
    """One thing to fetch.

    Attributes:
        urls: where it can be had, in the order to try.
        size: bytes to transfer, about; for the progress display and as a limit.
        files: the files of the set that it provides.
        digests: {"md5" or "sha256": digest of the transferred bytes}; empty for a single
            compressed file, whose content is checked.
        archive: the files lie in a tar archive.
    """

    urls: tuple[str, ...]
    size: int
    files: tuple[str, ...]
    digests: tuple[tuple[str, str], ...] = ()
    archive: bool = False


@dataclass(frozen=True)
class DebianPackage:
    """A package of Debian's archive that holds a set in /usr/share/datasets/``folder``."""

    name: str
    folder: str
    size: int


@dataclass(frozen=True)
class KnownSet:
    """A data set with a name.

    Attributes:
        name: as ``--data`` takes it.
        title: for people.
        layout: key of ``layouts.LAYOUTS``: how its files are laid out.
        files: what it consists of.
        classes: name of each label.
        shape: (C, H, W) of an image.
        sizes: images of the training and of the test set.
        mean, std: of the training set's pixels / 255, per channel.
        terms: licence, or what its owners say.
        homepage: where it is described.
        downloads: official sources.
        debian: Debian's package of it, or None.
        coarse: names of the coarse labels, if the set has them.
    """

    name: str
    title: str
    layout: str
    files: tuple[KnownFile, ...]
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    sizes: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    terms: str
    homepage: str
    downloads: tuple[Download, ...] = ()
    debian: DebianPackage | None = None
    coarse: tuple[str, ...] = ()

    @property
    def transfer(self) -> int:
        """Bytes to fetch, about."""
        return sum(download.size for download in self.downloads)

    def sha256(self, file: str) -> str | None:
        """The official digest of a file's content, if there is one."""
        return next((known.sha256 for known in self.files if known.name == file), None)


def _idx_files(*content: tuple[int, str]) -> tuple[KnownFile, ...]:
    return tuple(KnownFile(name, *known) for name, known in zip(IDX_NAMES, content, strict=True))


def _each(bases: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[Download, ...]:
    """One download a file, from each of the base addresses."""
    return tuple(
        Download(tuple(f"{base}{name}.gz" for base in bases), size, (name,))
        for name, size in zip(IDX_NAMES, sizes, strict=True)
    )


#: The files of MNIST and of everything laid out like it: training and test images and labels.
IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_DIGITS = tuple("0123456789")

_MNIST = KnownSet(
    name="mnist",
    title="MNIST, handwritten digits",
    layout="idx",
    files=_idx_files(
        (47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        (60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        (7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        (10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
    classes=_DIGITS,
    shape=(1, 28, 28),
    sizes=(60_000, 10_000),
    mean=(0.1307,),
    std=(0.3081,),
    terms="CC BY-SA 3.0 (LeCun, Cortes)",
    homepage="http://yann.lecun.com/exdb/mnist/",
    downloads=_each(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        (9_912_422, 28_881, 1_648_877, 4_542),
    ),
)

_FASHION = KnownSet(
    name="fashion-mnist",
    title="Fashion-MNIST, articles of clothing",
    layout="idx",
    files=_idx_files(
        (47_040_016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        (60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        (7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        (10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    ),
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    shape=(1, 28, 28),
    sizes=(60_000, 10_000),
    mean=(0.2860,),
    std=(0.3530,),
    terms="MIT (Zalando SE)",
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    downloads=_each(
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (26_421_880, 29_515, 4_422_102, 5_148),
    ),
    debian=DebianPackage("dataset-fashion-mnist", "fashion-mnist", 30_900_652),
)

_CIFAR10 = KnownSet(
    name="cifar10",
    title="CIFAR-10, small photographs",
    layout="cifar10",
    files=tuple(
        KnownFile(name, 30_730_000, digest)
        for name, digest in (
            (
                "data_batch_1.bin",
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            ),
            (
                "data_batch_2.bin",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            ),
            (
                "data_batch_3.bin",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            ),
            (
                "data_batch_4.bin",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            ),
            (
                "data_batch_5.bin",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            ),
            (
                "test_batch.bin",
                "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            ),
        )
    ),
    classes=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    shape=(3, 32, 32),
    sizes=(50_000, 10_000),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    terms="no licence is stated; cite Krizhevsky, Learning Multiple Layers of Features, 2009",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    downloads=(
        Download(
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            170_052_171,
            (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
            (("md5", "c32a1d4ab5d03f1284b67883e8d87530"),),
            archive=True,
        ),
    ),
)

_COARSE_100 = (
    "aquatic_mammals fish flowers food_containers fruit_and_vegetables "
    "household_electrical_devices household_furniture insects large_carnivores "
    "large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores "
    "medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1 "
    "vehicles_2"
)
_FINE_100 = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus "
    "butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch "
    "crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo "
    "keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain "
    "mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain "
    "plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk "
    "skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone "
    "television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)

_CIFAR100 = KnownSet(
    name="cifar100",
    title="CIFAR-100, small photographs in 100 classes",
    layout="cifar100",
    files=(
        KnownFile("train.bin", 153_700_000, None),
        KnownFile("test.bin", 30_740_000, None),
    ),
    classes=tuple(_FINE_100.split()),
    shape=(3, 32, 32),
    sizes=(50_000, 10_000),
    mean=(0.5071, 0.4866, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    terms="no licence is stated; cite Krizhevsky, Learning Multiple Layers of Features, 2009",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    downloads=(
        Download(
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
            168_513_733,
            ("train.bin", "test.bin"),
            (("md5", "03b5dce01913d631647c71ecec9e9cb8"),),
            archive=True,
        ),
    ),
    coarse=tuple(_COARSE_100.split()),
)

_UCI_DIGITS = KnownSet(
    name="digits",
    title="UCI digits, 8×8, shipped with convloom",
    layout="digits",
    files=(
        KnownFile(
            "digits-images-idx3-ubyte",
            115_024,
            "359cd13f0f514122884198b78a131df597421cbf5e93a76678fa96fc548f0d96",
        ),
        KnownFile(
            "digits-labels-idx1-ubyte",
            1_805,
            "ce71631c1f31ce56fa54f31d1d498fafacff59b001e6c30c4a5e29508aa277ad",
        ),
    ),
    classes=_DIGITS,
    shape=(1, 8, 8),
    sizes=(1_437, 360),
    mean=(0.3054,),
    std=(0.3753,),
    terms="CC BY 4.0 (E. Alpaydin, C. Kaynak)",
    homepage="https://archive.ics.uci.edu/dataset/80",
)

#: A set that recipes name and that nobody may fetch: a person gives the folder.
IMAGENET = "imagenet"

#: {name: set}, in the order to show them.
SETS = {known.name: known for known in (_MNIST, _FASHION, _CIFAR10, _CIFAR100, _UCI_DIGITS)}


def find(name: str) -> KnownSet | None:
    """The set of that name, however it is spelt (``Fashion_MNIST``, ``cifar-10``), or None."""
    plain = _plain(name)
    return next((known for known in SETS.values() if _plain(known.name) == plain), None)


def get(name: str) -> KnownSet:
    """The set of that name. Raises DataError, with the names there are."""
    known = find(name)
    if known is None and _plain(name) == IMAGENET:
        raise DataError(
            "imagenet is given to registered persons only and cannot be fetched; give the folder "
            "that holds it, or one like it: --data DIR, with DIR/train/CLASS/*.JPEG and "
            "DIR/val/CLASS/*.JPEG"
        )
    if known is None:
        close = difflib.get_close_matches(name.lower(), SETS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise DataError(
            f"there is no data set {name!r}{hint}; give one of {', '.join(SETS)}, or a folder with "
            "idx or CIFAR files, batch files of cuda-convnet, or image files as train/CLASS/*.jpg"
        )
    return known


def _plain(name: str) -> str:
    return name.lower().translate(str.maketrans("", "", "-_ "))
