"""What becomes of recorded spans: a Chrome trace, a picture, a table.

Source: Chrome's "Trace Event Format" (``ph`` X, C and M events; times in microseconds).
"""

from __future__ import annotations

import dataclasses
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..trace import Span

__all__ = ["KernelSummary", "MemorySample", "chrome_trace", "flops_of", "html_picture", "summarize"]

_PRODUCT = re.compile(r"(?:matmul|matvec|vecmat|mmt4d|conv|contract)[a-z0-9_]*?_(\d+(?:x\d+)+)(?:_|$)")
_PICTURE_WIDTH: Final = 1600
_ROW_HEIGHT: Final = 26
_LABEL_WIDTH: Final = 110
_MAX_RECTANGLES: Final = 20_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Live bytes of guest memory by tag at one moment."""

    time_ns: int
    by_tag: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KernelSummary:
    """All runs of one kernel. Times are summed over workers; rates are per second of worker time."""

    name: str
    category: str
    count: int
    total_ns: int
    share: float
    workgroups: int
    gflops: float | None
    gbytes: float | None


def flops_of(name: str) -> int | None:
    """Floating-point operations of one dispatch, read from the shape in a kernel's name: compilers name
    matrix products and convolutions after their loops, each turn of which multiplies and adds."""
    match = _PRODUCT.search(name)
    return 2 * math.prod(int(part) for part in match.group(1).split("x")) if match else None


def _fraction(span: Span) -> float:
    """The part of a dispatch that this span's worker did."""
    done, total = span.attributes.get("done_here"), span.attributes.get("workgroups")
    return done / total if isinstance(done, int) and isinstance(total, int) and total else 1.0


def summarize(spans: Sequence[Span]) -> list[KernelSummary]:
    """A line per kernel, the longest first. Only what workers and GPUs did counts."""
    groups: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        if span.track.startswith(("worker", "gpu")):
            groups.setdefault((span.name, span.category), []).append(span)
    everything = sum(span.duration_ns for group in groups.values() for span in group) or 1
    summaries = [_summary(name, category, group, everything) for (name, category), group in groups.items()]
    return sorted(summaries, key=lambda summary: -summary.total_ns)


def _summary(name: str, category: str, spans: Sequence[Span], everything: int) -> KernelSummary:
    total_ns = sum(span.duration_ns for span in spans)
    fractions = [_fraction(span) for span in spans]
    flops = flops_of(name)
    lengths = [span.attributes.get("bytes") for span in spans]
    moved = [
        length * part for length, part in zip(lengths, fractions, strict=True) if isinstance(length, int)
    ]
    workgroups = [span.attributes.get("done_here", span.attributes.get("workgroups")) for span in spans]
    return KernelSummary(
        name=name,
        category=category,
        count=round(sum(fractions)),
        total_ns=total_ns,
        share=total_ns / everything,
        workgroups=sum(number for number in workgroups if isinstance(number, int)),
        gflops=None if flops is None or not total_ns else flops * sum(fractions) / total_ns,
        gbytes=sum(moved) / total_ns if len(moved) == len(spans) and total_ns else None,
    )


def _tracks(spans: Sequence[Span]) -> list[str]:
    """Rows from top to bottom: the host, then the workers in order."""
    return sorted({span.track for span in spans}, key=lambda track: (track != "host", len(track), track))


def chrome_trace(
    spans: Sequence[Span], memory: Sequence[MemorySample], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """The spans as a JSON object that Perfetto and ``chrome://tracing`` open."""
    origin_ns = min([span.begin_ns for span in spans] + [sample.time_ns for sample in memory], default=0)
    threads = {track: number for number, track in enumerate(_tracks(spans))}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "sylvite"}},
    ]
    for track, number in threads.items():
        common = {"ph": "M", "pid": 1, "tid": number}
        events.append({**common, "name": "thread_name", "args": {"name": track}})
        events.append({**common, "name": "thread_sort_index", "args": {"sort_index": number}})
    for span in spans:
        event = {
            "ph": "X",
            "pid": 1,
            "tid": threads[span.track],
            "name": span.name,
            "cat": span.category,
            "ts": (span.begin_ns - origin_ns) / 1e3,
            "dur": span.duration_ns / 1e3,
            "args": {**span.attributes, **_rates(span)},
        }
        events.append(event)
    events += [
        {
            "ph": "C",
            "pid": 1,
            "name": "guest memory",
            "ts": (sample.time_ns - origin_ns) / 1e3,
            "args": {tag or "untagged": count for tag, count in sample.by_tag.items()},
        }
        for sample in memory
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(metadata)}


def _rates(span: Span) -> dict[str, float]:
    duration_ns = max(span.duration_ns, 1)
    rates = {}
    flops = flops_of(span.name)
    if flops is not None:
        rates["gflops"] = round(flops * _fraction(span) / duration_ns, 3)
    byte_length = span.attributes.get("bytes")
    if isinstance(byte_length, int):
        rates["gbytes_per_s"] = round(byte_length * _fraction(span) / duration_ns, 3)
    return rates


def html_picture(
    title: str, spans: Sequence[Span], summaries: Sequence[KernelSummary], memory: Mapping[str, int]
) -> str:
    """A page that needs nothing else: the timeline as SVG, the table, memory by tag."""
    shown = sorted(spans, key=lambda span: -span.duration_ns)[:_MAX_RECTANGLES]
    rows = "\n".join(
        f"<tr><td>{html.escape(item.name)}</td><td>{item.count}</td><td>{item.total_ns / 1e6:.3f}</td>"
        f"<td>{item.share:.1%}</td><td>{item.workgroups}</td><td>{_number(item.gflops)}</td>"
        f"<td>{_number(item.gbytes)}</td></tr>"
        for item in summaries
    )
    tags = "\n".join(
        f"<tr><td>{html.escape(tag or 'untagged')}</td><td>{count:,}</td></tr>"
        for tag, count in sorted(memory.items())
    )
    left_out = len(spans) - len(shown)
    note = f"<p>The {left_out} shortest spans are not drawn.</p>" if left_out else ""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>
body {{ font: 14px sans-serif; margin: 2em; color: #222; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
td, th {{ padding: 2px 10px; text-align: right; border-bottom: 1px solid #ddd; }}
td:first-child, th:first-child {{ text-align: left; font-family: monospace; }}
svg text {{ font: 11px sans-serif; }} rect:hover {{ stroke: #000; }}
</style></head><body><h1>{html.escape(title)}</h1>
{_timeline(shown)}{note}
<h2>Kernels</h2><table><tr><th>name</th><th>runs</th><th>ms</th><th>share</th><th>workgroups</th>
<th>GFLOP/s</th><th>GB/s</th></tr>
{rows}</table>
<h2>Guest memory by tag (bytes)</h2><table>{tags}</table></body></html>
"""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _timeline(spans: Sequence[Span]) -> str:
    if not spans:
        return "<p>Nothing was recorded.</p>"
    tracks = _tracks(spans)
    begin_ns = min(span.begin_ns for span in spans)
    scale = (_PICTURE_WIDTH - _LABEL_WIDTH) / max(max(span.end_ns for span in spans) - begin_ns, 1)
    parts = []
    for row, track in enumerate(tracks):
        y = row * _ROW_HEIGHT
        parts.append(f'<text x="0" y="{y + 17}">{html.escape(track)}</text>')
        for span in spans:
            if span.track == track:
                x = _LABEL_WIDTH + (span.begin_ns - begin_ns) * scale
                tip = f"{span.name}: {span.duration_ns / 1e3:.1f} us"
                rates = ", ".join(
                    f"{key} {value}" for key, value in {**span.attributes, **_rates(span)}.items()
                )
                parts.append(
                    f'<rect x="{x:.2f}" y="{y + 2}" width="{max(span.duration_ns * scale, 0.3):.2f}" '
                    f'height="{_ROW_HEIGHT - 4}" fill="{_colour(span.name)}">'
                    f"<title>{html.escape(tip)} {html.escape(rates)}</title></rect>"
                )
    height = len(tracks) * _ROW_HEIGHT
    body = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {_PICTURE_WIDTH} {height}" width="100%" '
        f'xmlns="http://www.w3.org/2000/svg">\n{body}\n</svg>'
    )


def _colour(name: str) -> str:
    """A colour that a name always has."""
    return f"hsl({sum(map(ord, name)) * 47 % 360} 60% 65%)"


def to_json(trace: Mapping[str, Any]) -> str:
    """The trace as text."""
    return json.dumps(trace, separators=(",", ":"))
