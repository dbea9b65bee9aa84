"""`tidemill image ...`: builds images of software, shows, compares and removes them, and runs commands in them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, count, duration
from tidemill.cli.terminal import hint, say, show, show_json, show_table
from tidemill.errors import ConfigError
from tidemill.model.quantities import bytes_text, count_text

if TYPE_CHECKING:
    from tidemill.image.recipe import Recipe
    from tidemill_images.build import Built, Order

LEFT_S = 86400
"""A build that wrote nothing to its temporary file for this time counts as dead."""

MODES = ("auto", "fuse", "unpack", "relocate")


def define_store(parser: Parser) -> None:
    """The option that all verbs of images have."""
    parser.add_argument(
        "--store",
        type=Path,
        metavar="DIR",
        help="directory of images (default: `images` of the site in your Tidemill directory)",
    )


def store_of(args: Namespace) -> Path:
    """The store that is meant."""
    from tidemill.client.home import home_dir

    store: Path = args.store if args.store is not None else home_dir(args.home) / "site" / "images"
    return store.absolute()


def define_name(parser: Parser) -> None:
    """Options of verbs that work on one image."""
    parser.add_argument("name", metavar="NAME", help="the image: its name, its digest, or its recipe's path")
    define_store(parser)


def define_build(parser: Parser) -> None:
    """Options of `image build`."""
    define_store(parser)
    parser.add_argument("--name", required=True, metavar="NAME", help="what applications call it")
    parser.add_argument(
        "--profile",
        type=Path,
        action="append",
        default=[],
        metavar="P",
        help="a profile of `tidemill trace`: pack what was used; repeatable",
    )
    parser.add_argument(
        "--tree",
        action="append",
        default=[],
        metavar="DIR[:AT]",
        help="pack a whole directory, which payloads see at AT (default: where it is); repeatable",
    )
    parser.add_argument(
        "--area",
        action="append",
        default=[],
        metavar="PREFIX",
        help="directory that the image stands for (default: the shared file systems of the profiles); repeatable",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="GLOB",
        help="leave out names, or whole paths if it has a slash: they stay on the shared file system, "
        "or are missing from a tree seen at AT; repeatable",
    )
    parser.add_argument(
        "--skip-unreadable", action="store_true", help="leave out what may not be read (default: refuse)"
    )
    parser.add_argument(
        "--block", choices=("128K", "1M"), default="128K", help="size of compressed blocks (default: 128K)"
    )
    parser.add_argument(
        "--level", type=int, choices=range(1, 23), metavar="1..22", help="of zstd (default: 6)"
    )


def build(args: Namespace) -> int:
    """Build an image."""
    from tidemill_images.build import build as build_image
    from tidemill_images.disk import shown

    built = build_image(_order(args), store_of(args), tell=say)
    _tell_problems(built)
    if args.json:
        left = [{"path": shown(each.path), "why": each.why} for each in built.skipped]
        gone = [shown(path) for path in built.gone]
        told = {"recipe": built.recipe, "path": str(built.path), "seconds": built.seconds}
        show_json({**told, "not_packed": left, "gone": gone})
        return 0
    recipe = built.recipe
    show(f"{recipe.name}  sha256:{recipe.file.sha256}")
    _show_contents(recipe)
    show(f"    {bytes_text(recipe.added_bytes)} added to the store in {built.seconds:.1f} s: {built.path}")
    hint(f'an application uses it by `images = ["{recipe.name}"]`')
    return 0


def _order(args: Namespace) -> Order:
    from tidemill.image.profile import merge, read_profile
    from tidemill.image.recipe import Origin
    from tidemill_images.areas import outermost, parse_tree, real_area, shared_areas, trees_below_root
    from tidemill_images.build import Order
    from tidemill_images.squash import BLOCKS, LEVEL

    if not args.profile and not args.tree:
        raise ConfigError("there is nothing to pack", hint="name --profile or --tree")
    profiles = [(path, read_profile(path)) for path in args.profile]
    profile = merge([each for _, each in profiles]) if profiles else None
    asked = [parse_tree(text) for text in args.tree]
    trees = [tree for each in asked for tree in trees_below_root(each, asked=args.area)]
    areas = [real_area(each) for each in args.area if not any(each == tree.at for tree in trees)]
    if not areas and profile is not None:
        areas = shared_areas(profile)
    return Order(
        name=args.name,
        areas=outermost([*areas, *(tree.at for tree in trees)]),
        trees=trees,
        profile=profile,
        exclude=args.exclude,
        skip_unreadable=args.skip_unreadable,
        block_bytes=BLOCKS[args.block == "1M"],
        level=args.level or LEVEL,
        origins=[
            *(
                Origin(profile=str(path.absolute()), command=each.command, runs=each.runs)
                for path, each in profiles
            ),
            *(Origin(tree=tree.source, at=tree.at) for tree in trees),
        ],
    )


def _tell_problems(built: Built) -> None:
    from tidemill_images.build import NAMED_MAX
    from tidemill_images.disk import shown

    for problem in built.skipped[:NAMED_MAX]:
        say(f"not packed: `{shown(problem.path)}`: {problem.why}")
    if len(built.skipped) > NAMED_MAX:
        say(f"not packed: {len(built.skipped) - NAMED_MAX} more")
    if built.gone:
        say(
            f"{len(built.gone)} paths of the profiles do not exist any more, such as `{shown(built.gone[0])}`"
        )


def _show_contents(recipe: Recipe) -> None:
    entries = recipe.entries
    show(f"    areas: {', '.join(recipe.areas)}")
    show(
        f"    {count_text(entries.files)} files, {count_text(entries.directories)} directories, "
        f"{count_text(entries.links)} links, {count_text(entries.stubs)} stubs"
    )
    show(
        f"    {bytes_text(recipe.file.bytes)} as squashfs, {bytes_text(recipe.unpacked_bytes)} unpacked, "
        f"{count_text(len(recipe.file.pieces))} pieces in {len(recipe.packs())} packs"
    )


def list_images(args: Namespace) -> int:
    """List the images of a store."""
    from tidemill.image.recipe import read_store
    from tidemill_images.catalogue import own_bytes

    shelf = read_store(store_of(args))
    own = own_bytes(shelf.recipes)
    for name, why in shelf.broken.items():
        say(f"`{name}` cannot be used: {why}")
    if args.json:
        show_json(
            [
                {
                    "name": name,
                    "sha256": recipe.file.sha256,
                    "bytes": recipe.file.bytes,
                    "own_bytes": own[name],
                    "unpacked_bytes": recipe.unpacked_bytes,
                    "areas": recipe.areas,
                    "created_us": recipe.created_us,
                }
                for name, recipe in shelf.recipes.items()
            ]
        )
        return 0
    show_table(
        ["IMAGE", "DIGEST", "BYTES", "NOT SHARED", "FILES", "STUBS", "BUILT", "AREAS"],
        [
            [
                name,
                recipe.file.sha256[:12],
                bytes_text(recipe.file.bytes),
                bytes_text(own[name]),
                count_text(recipe.entries.files),
                count_text(recipe.entries.stubs),
                clock.utc_text(recipe.created_us),
                ", ".join(recipe.areas),
            ]
            for name, recipe in shelf.recipes.items()
        ],
        right=(2, 3, 4, 5),
    )
    return 0


def define_inspect(parser: Parser) -> None:
    """Options of `image inspect`."""
    define_name(parser)
    parser.add_argument("--files", action="store_true", help="list what is in it")


def inspect(args: Namespace) -> int:
    """Show everything about one image."""
    from tidemill_images.catalogue import find_recipe
    from tidemill_images.disk import shown
    from tidemill_images.name_list import read_listing

    path, recipe = find_recipe(store_of(args), args.name)
    listed = read_listing(path.parent, recipe.listing) if args.files else []
    if args.json:
        # a path may hold bytes that JSON cannot
        rows = [{"path": shown(each.path), "kind": each.kind, "bytes": each.size, "stub": each.stub,
                 "target": None if each.target is None else shown(each.target), "sha256": each.sha256}
                for each in listed]  # fmt: skip
        show_json({"recipe": recipe, "files": rows} if args.files else recipe)
        return 0
    show(f"{recipe.name}  sha256:{recipe.file.sha256}  built {clock.utc_text(recipe.created_us)}")
    _show_contents(recipe)
    for origin in recipe.origins:
        at = f", seen at {origin.at}" if origin.at != origin.tree else ""
        command = " ".join(origin.command)
        show(f"    from {origin.tree}{at}" if origin.tree else f"    from {origin.profile}: {command}")
    show(f"    {recipe.tool}, blocks of {bytes_text(recipe.block_bytes)}")
    for each in listed:
        leads = f" -> {shown(each.target)}" if each.target is not None else ""
        show(f"{'s' if each.stub else each.kind} {each.size:>12} {shown(each.path)}{leads}")
    return 0


def define_verify(parser: Parser) -> None:
    """Options of `image verify`."""
    define_name(parser)
    parser.add_argument(
        "--content", action="store_true", help="compare bytes (default: sizes and times of change)"
    )
    parser.add_argument("--store-only", action="store_true", help="do not read the sources")


def verify(args: Namespace) -> int:
    """Compare an image with its recipe and with what it was made from; 1 if something differs."""
    from tidemill_images.catalogue import find_recipe
    from tidemill_images.disk import shown
    from tidemill_images.name_list import read_listing
    from tidemill_images.verify import check_store, compare

    path, recipe = find_recipe(store_of(args), args.name)
    wrong = check_store(recipe, path.parent)
    found = []
    if not args.store_only and not wrong:
        listed = read_listing(path.parent, recipe.listing)
        found = sorted(compare(recipe, listed, content=args.content), key=lambda each: each.path)
    if args.json:
        rows = [{"what": each.what, "path": shown(each.path), "why": each.why} for each in found]
        show_json({"image": recipe.name, "sha256": recipe.file.sha256, "store": wrong, "sources": rows})
        return 1 if wrong or found else 0
    for line in wrong:
        show(f"store    {line}")
    for each in found:
        show(f"{each.what.value:<8} {shown(each.path)}: {each.why}")
    if wrong or found:
        hint("build it again to bring it up to date")
        return 1
    compared = (
        "its bytes are right" if args.store_only else "its bytes are right, its sources are as they were"
    )
    say(f"`{recipe.name}`: {compared}")
    return 0


def define_gc(parser: Parser) -> None:
    """Options of `image gc`."""
    define_store(parser)
    parser.add_argument(
        "--site",
        type=Path,
        metavar="DIR",
        help="site whose applications and fleets use the store (default: the directory above it)",
    )
    parser.add_argument(
        "--keep",
        type=count,
        metavar="N",
        help="keep the N newest images that no application names (default: none of them)",
    )
    parser.add_argument(
        "--young",
        type=duration,
        default=86400,
        metavar="TIME",
        help="keep what is younger than TIME (default: 1d)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")


def gc(args: Namespace) -> int:
    """Remove images that no application names, and bytes that no image needs."""
    from tidemill_images.catalogue import Kept
    from tidemill_images.removal import named_images, plan_removal, remove, used_packs

    store = store_of(args)
    site = (args.site or store.parent).absolute()
    named = named_images(site / "apps", store)
    if named is None and (args.site is not None or args.keep is None):
        raise ConfigError(
            f"`{site}` is not a site, it has no `apps`: nothing says which images of `{store}` are used",
            hint="name the site by --site"
            + (", or say by --keep how many images stay" if args.site is None else ""),
        )
    kept = Kept(
        named=named or set(),
        used=used_packs(site / "fleets"),
        newest=args.keep or 0,
        young_us=clock.now_us() - args.young * 1_000_000,
        left_us=clock.now_us() - max(args.young, LEFT_S) * 1_000_000,
    )
    planned = plan_removal(store, kept)
    done = planned if args.dry_run else remove(store, planned)
    if args.json:
        show_json(done)
        return 0
    for name in done.images:
        show(f"image {name}")
    for file in done.files:
        show(f"file  {file}")
    would = "would be removed" if args.dry_run else "removed"
    say(f"{len(done.images)} images and {len(done.files)} files {would}: {bytes_text(done.bytes)}")
    return 0


def define_export(parser: Parser) -> None:
    """Options of `image export`."""
    define_name(parser)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE.sqsh", help="where to write it"
    )


def export(args: Namespace) -> int:
    """Write an image as one squashfs file."""
    from tidemill_images.catalogue import export as export_image
    from tidemill_images.catalogue import find_recipe

    path, recipe = find_recipe(store_of(args), args.name)
    target = args.output.absolute()
    export_image(recipe, path.parent, target)
    if args.json:
        show_json({"file": str(target), "sha256": recipe.file.sha256, "bytes": recipe.file.bytes})
    else:
        show(f"{target}  sha256:{recipe.file.sha256}  {bytes_text(recipe.file.bytes)}")
    return 0


def define_run(parser: Parser) -> None:
    """Options of `image run`."""
    define_name(parser)
    parser.add_argument(
        "--mode", choices=MODES, default="auto", help="how the image is shown (default: what this node can)"
    )
    parser.add_argument("command", nargs="+", metavar="-- CMD", help="the command, after `--`")


def run(args: Namespace) -> int:
    """Run a command in an image; becomes that command's process, so signals and exit status are its own."""
    import os

    from tidemill.node.binary import find_binary
    from tidemill_images.catalogue import find_recipe

    path, _ = find_recipe(store_of(args), args.name)
    binary = str(find_binary())
    words = [binary, "image", "run", "--recipe", str(path), "--mode", args.mode, "--", *args.command]
    os.execv(binary, words)


COMMANDS = {
    "image build": Command(
        define_build, build, "tidemill image build --name gen-8.3 --profile gen.json", talks=False
    ),
    "image list": Command(define_store, list_images, "tidemill image list", talks=False),
    "image inspect": Command(define_inspect, inspect, "tidemill image inspect gen-8.3 --files", talks=False),
    "image verify": Command(define_verify, verify, "tidemill image verify gen-8.3", talks=False),
    "image gc": Command(define_gc, gc, "tidemill image gc --keep 3 --dry-run", talks=False),
    "image export": Command(define_export, export, "tidemill image export gen-8.3 -o gen.sqsh", talks=False),
    "image run": Command(
        define_run, run, "tidemill image run gen-8.3 -- python -c 'import numpy'", talks=False
    ),
}
