"""Names beside the lines of a heatmap, when several layers share a line."""

from collections.abc import Sequence

Label = tuple[int, str]  # the place of the first layer of a line, and what stands beside it


def without_shared_beginning(paths: Sequence[str]) -> list[str]:
    """What tells them apart: `model.blocks.` is left out where every path begins with it."""
    parts = [path.split(".") for path in paths]
    shared = 0
    while parts and all(len(path) > shared + 1 and path[shared] == parts[0][shared] for path in parts):
        shared += 1
    return [".".join(path[shared:]) for path in parts]


def labels_of(every: Sequence[str], shown: Sequence[str], together: int, *, brief: bool = False) -> list[Label]:
    """`shown` are the first layers of each row, `together` rows make a line; `brief` leaves out what all share.

    Tensors of one module have its name; otherwise the first of several speaks for them.
    """
    place = {path: number for number, path in enumerate(every)}
    starts = [place[path] for path in shown[::together]]
    if brief:
        every = without_shared_beginning(every)
    labels: list[Label] = []
    for start, end in zip(starts, [*starts[1:], len(every)]):
        parents = {path.rpartition(".")[0] for path in every[start:end]}
        if end - start == 1:
            labels.append((start, every[start]))
        elif len(parents) == 1 and "" not in parents:
            labels.append((start, parents.pop()))
        else:
            labels.append((start, f"{every[start]} …"))
    return labels


def line_of(every: Sequence[str], labels: Sequence[Label], path: str | None) -> int | None:
    """The line in which a layer is drawn."""
    if path is None or path not in every:
        return None
    row = every.index(path)
    return max(line for line, (start, _) in enumerate(labels) if start <= row)
