"""The Triton kernels behind `fused`: attention with its log-sum-exp, then the columns in a second pass over keys.

Scores exist one tile at a time and are never written. One program owns each tile of keys and reads the queries in
order, so there are no atomics, and every run gives the same numbers. Products use the dtype of the inputs and
accumulate in fp32; exponents are base 2.
"""

import triton
import triton.language as tl


@triton.jit
def _visible(
    s, m, n, mask, mask_q, mask_k, queries, keys, least, CAUSAL: tl.constexpr, MASKED: tl.constexpr, FLAT: tl.constexpr
):
    """Return scores with the mask, −∞ where query ``m`` does not see key ``n``; a FLAT mask serves all queries."""
    of_key = (n >= 0) & (n < keys)
    there = of_key & (m < queries)
    seen = there
    if CAUSAL:
        seen = seen & (m >= n)
    place = n.to(tl.int64) * mask_k
    if MASKED and not FLAT:
        place, of_key = m.to(tl.int64) * mask_q + place, there
    if MASKED == 1:
        seen = seen & (tl.load(mask + place, mask=of_key, other=0) != 0)
    if MASKED == 2:
        bias = tl.load(mask + place, mask=of_key, other=0.0).to(tl.float32)
        s += bias * 1.4426950408889634
        seen = seen & ((bias > least) | (bias != bias))  # NaN shows in the output
    return tl.where(seen, s, float("-inf"))


@triton.jit
def _grown(m_i, l_i, s):
    """Extend maximum and sum per row by a tile; return both, the factor on earlier sums, the tile's exponentials."""
    highest = tl.maximum(m_i, tl.max(s, 1))
    base = tl.where(highest == float("-inf"), 0.0, highest)
    p = tl.exp2(s - base[:, None])
    shrink = tl.exp2(m_i - base)
    return highest, l_i * shrink + tl.sum(p, 1), shrink, p


@triton.jit
def _rows(base, index, stride, d, count, width):
    """Load a tile of rows; 0 beyond the last row and beyond their width."""
    inside = (index >= 0) & (index < count)
    return tl.load(
        base + index[:, None].to(tl.int64) * stride + d[None, :], mask=inside[:, None] & (d < width)[None, :], other=0.0
    )


@triton.jit
def _product(a, b, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """Return the product of two tiles in fp32; Triton's interpreter has none of bfloat16 and needs WIDEN."""
    if WIDEN:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRECISION)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _pairs(a, ai, a_s, a_count, b, bi, b_s, b_count, dim, BD: tl.constexpr, SIZE: tl.constexpr):
    """Return row ``ai`` of a times row ``bi`` of b, pair by pair, a few columns at a time to spare the registers."""
    total = tl.zeros([SIZE], tl.float32)
    for part in tl.static_range(0, BD, 16):
        d = part + tl.arange(0, 16)
        total += tl.sum(
            _rows(a, ai, a_s, d, a_count, dim).to(tl.float32) * _rows(b, bi, b_s, d, b_count, dim).to(tl.float32), 1
        )
    return total


@triton.jit(do_not_specialize=["queries", "keys", "mask_q", "shift"])
def attention_kernel(
    q, k, v, out, lse, lse_all, removed, diagonal, mask, hidden, front,
    q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, o_b, o_h, o_s,
    mask_b, mask_h, mask_q, mask_k, hidden_b, hidden_h, hidden_k,
    heads, repeat, queries, keys, dim, value_dim, shift, scale, least,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, FLAT: tl.constexpr, HIDING: tl.constexpr, FRONTED: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Compute one tile of queries of one head: its output, log-sum-exps, share removed and diagonal.

    ``lse`` is that in force, +∞ for a query that keeps its hidden keys; ``lse_all`` is without the hiding, +∞ for one
    that sees nothing. Without HIDING only ``lse_all`` is written.
    """
    tiles = tl.cdiv(queries, BM)  # of one head next to each other, in the one axis of a grid without a small limit
    tile, owner = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    batch, head = owner // heads, owner % heads
    shared = head // repeat
    q += batch * q_b + head * q_h
    k += batch * k_b + shared * k_h
    v += batch * v_b + shared * v_h
    if MASKED:
        mask += batch * mask_b + head * mask_h
    if HIDING:
        hidden += batch * hidden_b + head * hidden_h
    first = tile * BM
    m, d, e = first + tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BV)
    row = (batch * heads + head) * queries + m
    inside = m < queries
    mine = _rows(q, m, q_s, d, queries, dim)
    m_i = tl.full([BM], float("-inf"), tl.float32)
    l_i = tl.zeros([BM], tl.float32)
    if FRONTED:
        m_i = tl.load(front + row, mask=inside, other=0.0)
        l_i += 1.0
    m_h = tl.full([BM], float("-inf"), tl.float32)  # of the hidden keys, which few tiles have
    l_h = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BV], tl.float32)
    end = tl.minimum(keys, first + BM) if CAUSAL else keys
    for start in range(0, end, BN):
        n = start + tl.arange(0, BN)
        s = _product(mine, tl.trans(_rows(k, n, k_s, d, keys, dim)), PRECISION, WIDEN) * scale
        if CAUSAL or MASKED:
            s = _visible(s, m[:, None], n[None, :], mask, mask_q, mask_k, queries, keys, least, CAUSAL, MASKED, FLAT)
        else:  # queries beyond the last are not stored
            s = tl.where((n < keys)[None, :], s, float("-inf"))
        if HIDING:
            gone = tl.load(hidden + n * hidden_k, mask=n < keys, other=0) != 0
            if tl.max(gone.to(tl.int32), 0) > 0:
                m_h, l_h, _, _ = _grown(m_h, l_h, tl.where(gone[None, :], s, float("-inf")))
                s = tl.where(gone[None, :], float("-inf"), s)
        m_i, l_i, shrink, p = _grown(m_i, l_i, s)
        value = _rows(v, n, v_s, e, keys, value_dim)
        acc = acc * shrink[:, None] + _product(p.to(value.dtype), value, PRECISION, WIDEN)
    kept = tl.where(l_i == 0.0, float("-inf"), m_i + tl.log2(l_i))
    acc = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]
    everything, in_force, spared = kept, kept, inside & False
    if HIDING:
        taken = tl.where(l_h == 0.0, float("-inf"), m_h + tl.log2(l_h))
        spared = (kept == float("-inf")) & (taken != float("-inf")) & inside
        higher = tl.maximum(kept, taken)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = tl.exp2(kept - base) + tl.exp2(taken - base)
        everything = tl.where(total == 0.0, float("-inf"), base + tl.log2(total))
        in_force = tl.where(spared, taken, kept)
        if tl.max(spared.to(tl.int32), 0) > 0:
            again = tl.zeros([BM, BV], tl.float32)
            for start in range(0, end, BN):
                n = start + tl.arange(0, BN)
                gone = tl.load(hidden + n * hidden_k, mask=n < keys, other=0) != 0
                if tl.max(gone.to(tl.int32), 0) > 0:
                    s = _product(mine, tl.trans(_rows(k, n, k_s, d, keys, dim)), PRECISION, WIDEN) * scale
                    s = _visible(
                        s, m[:, None], n[None, :], mask, mask_q, mask_k, queries, keys, least, CAUSAL, MASKED, FLAT
                    )
                    p = tl.exp2(
                        tl.where(gone[None, :], s, float("-inf")) - tl.where(spared, taken, float("inf"))[:, None]
                    )
                    value = _rows(v, n, v_s, e, keys, value_dim)
                    again += _product(p.to(value.dtype), value, PRECISION, WIDEN)
            acc = tl.where(spared[:, None], again, acc)
        share = tl.where(spared | (taken == float("-inf")), 0.0, tl.exp2(taken - everything))
        tl.store(removed + row, share, mask=inside)
        tl.store(lse + row, tl.where(spared, float("inf"), kept), mask=inside)
    tl.store(lse_all + row, tl.where(everything == float("-inf"), float("inf"), everything), mask=inside)
    at = out + batch * o_b + head * o_h + m[:, None].to(tl.int64) * o_s + e[None, :]
    tl.store(at, acc.to(out.dtype.element_ty), mask=inside[:, None] & (e < value_dim)[None, :])
    itself = m + shift
    s = _pairs(q, m, q_s, queries, k, itself, k_s, keys, dim, BD, BM) * scale
    s = _visible(s, m, itself, mask, mask_q, mask_k, queries, keys, least, CAUSAL, MASKED, FLAT)
    if HIDING:
        gone = tl.load(hidden + itself * hidden_k, mask=(itself >= 0) & (itself < keys), other=0) != 0
        s = tl.where(gone & ~spared, float("-inf"), s)
    tl.store(diagonal + row, tl.exp2(s - tl.where(in_force == float("-inf"), float("inf"), in_force)), mask=inside)


@triton.jit(do_not_specialize=["queries", "keys", "mask_q", "groups_b", "groups_g", "shift"])
def column_kernel(
    q, k, lse, lse_all, groups, sums, local, diagonal, last_row, last_in_force, mask, hidden,
    q_b, q_h, q_s, k_b, k_h, k_s, groups_b, groups_g,
    mask_b, mask_h, mask_q, mask_k, hidden_b, hidden_h, hidden_k,
    heads, repeat, queries, keys, dim, shift, scale, least,
    GROUPS: tl.constexpr, BY_TORCH: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, FLAT: tl.constexpr, HIDING: tl.constexpr, PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BG: tl.constexpr,
):  # fmt: skip
    """Compute one tile of keys of one head: its columns per query group, in force and without the hiding; the last row.

    With BY_TORCH also what the query that stands at a key gives it: torch has computed the attention, without mask and
    hiding, and ``lse_all`` is its natural logarithm.
    """
    tiles = tl.cdiv(keys, BN)
    tile, owner = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    batch, head = owner // heads, owner % heads
    q += batch * q_b + head * q_h
    k += batch * k_b + (head // repeat) * k_h
    groups += batch * groups_b
    if MASKED:
        mask += batch * mask_b + head * mask_h
    first = tile * BN
    n, d, g = first + tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BG)
    gone = n < 0
    if HIDING:
        gone = tl.load(hidden + batch * hidden_b + head * hidden_h + n * hidden_k, mask=n < keys, other=0) != 0
    mine = _rows(k, n, k_s, d, keys, dim)
    took = tl.zeros([BN, BG], tl.float32)
    bare = tl.zeros([BN, BG], tl.float32)
    rows = (batch * heads + head) * queries
    unit = 1.4426950408889634 if BY_TORCH else 1.0
    begin = first // BM * BM if CAUSAL else 0
    for start in range(begin, queries, BM):
        m = start + tl.arange(0, BM)
        s = _product(mine, tl.trans(_rows(q, m, q_s, d, queries, dim)), PRECISION, WIDEN) * scale
        # Else all is seen: beyond the last query everything is +∞, and keys beyond the last are not stored.
        if CAUSAL or MASKED:
            s = _visible(s, m[None, :], n[:, None], mask, mask_q, mask_k, queries, keys, least, CAUSAL, MASKED, FLAT)
        everything = tl.load(lse_all + rows + m, mask=m < queries, other=float("inf")) * unit
        p = tl.exp2(s - everything[None, :])  # without the hiding
        in_force = p
        if HIDING:
            left = tl.load(lse + rows + m, mask=m < queries, other=float("inf"))
            spared = left == float("inf")
            gap = tl.where(spared | (everything == float("inf")), 0.0, everything - left)
            # What is left of a row that loses nearly everything may be too small to be scaled up: its weights are
            # computed anew.
            far = gap > 40.0
            factor = tl.exp2(tl.where(far, 0.0, gap))
            in_force = p * tl.where(gone[:, None], tl.where(spared, 1.0, 0.0)[None, :], factor[None, :])
            if tl.max(far.to(tl.int32), 0) > 0:
                anew = tl.exp2(tl.where(gone[:, None], float("-inf"), s) - tl.where(far, left, 0.0)[None, :])
                in_force = tl.where(far[None, :], anew, in_force)
        for group in tl.static_range(GROUPS):
            member = tl.load(groups + group * groups_g + m, mask=m < queries, other=0.0)
            took += tl.where(g == group, tl.sum(in_force * member[None, :], 1)[:, None], 0.0)
            if HIDING:
                bare += tl.where(g == group, tl.sum(p * member[None, :], 1)[:, None], 0.0)
    at = ((batch * heads + head) * GROUPS + g[None, :]) * keys + n[:, None]
    there = (n < keys)[:, None] & (g < GROUPS)[None, :]
    tl.store(sums + at, took, mask=there)
    newest = queries - 1 + tl.zeros([BN], tl.int32)
    s = _pairs(k, n, k_s, keys, q, newest, q_s, queries, dim, BD, BN) * scale
    s = _visible(s, queries - 1, n, mask, mask_q, mask_k, queries, keys, least, CAUSAL, MASKED, FLAT)
    place = (batch * heads + head) * keys + n
    tl.store(last_row + place, tl.exp2(s - tl.load(lse_all + rows + queries - 1) * unit), mask=n < keys)
    if BY_TORCH:
        itself = n - shift
        there = (n < keys) & (itself >= 0) & (itself < queries)
        s = _pairs(k, n, k_s, keys, q, itself, q_s, queries, dim, BD, BN) * scale
        tl.store(
            diagonal + rows + itself,
            tl.exp2(s - tl.load(lse_all + rows + itself, mask=there, other=0.0) * unit),
            mask=there,
        )
    if HIDING:
        tl.store(local + at, bare, mask=there)
        kept = tl.load(lse + rows + queries - 1)
        if kept == float("inf"):  # the newest query keeps its hidden keys
            kept = tl.load(lse_all + rows + queries - 1)
        else:
            s = tl.where(gone, float("-inf"), s)
        tl.store(last_in_force + place, tl.exp2(s - tl.where(kept == float("-inf"), float("inf"), kept)), mask=n < keys)


@triton.jit(do_not_specialize=["keys", "first", "rank"])
def norm_kernel(
    k, v, projection, key_norms, value_norms, output_norms,
    k_b, k_h, k_s, v_b, v_h, v_s, heads, repeat, keys, first, dim, value_dim, rank,
    PROJECTED: tl.constexpr, HALF: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Compute the norms of one tile of keys of one kv head, and of its values.

    With PROJECTED also those of its values behind the output projection of each query head of its group, from key
    ``first`` on.
    """
    tiles = tl.cdiv(keys, BN)
    tile, owner = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    batch, head = owner // heads, owner % heads
    n, d, e = tile * BN + tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BV)
    place = (batch * heads + head) * keys + n
    key = _rows(k + batch * k_b + head * k_h, n, k_s, d, keys, dim).to(tl.float32)
    tl.store(key_norms + place, tl.sqrt_rn(tl.sum(key * key, 1)), mask=n < keys)
    value = _rows(v + batch * v_b + head * v_h, n, v_s, e, keys, value_dim).to(tl.float32)
    tl.store(value_norms + place, tl.sqrt_rn(tl.sum(value * value, 1)), mask=n < keys)
    if PROJECTED:
        for number in range(repeat):
            mine = head * repeat + number
            total = tl.zeros([BN], tl.float32)
            for start in range(0, rank, BR):
                row = _rows(
                    projection + mine * rank * value_dim, start + tl.arange(0, BR), value_dim, e, rank, value_dim
                )
                if HALF:  # 16 bits have no more digits than tf32: the projection alone is split in two
                    high = (row.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
                    added = tl.dot(value, tl.trans(high), input_precision="tf32")
                    added = tl.dot(value, tl.trans(row - high), added, input_precision="tf32")
                else:
                    added = tl.dot(value, tl.trans(row), input_precision="tf32x3")
                total += tl.sum(added * added, 1)
            at = (batch * heads * repeat + mine) * (keys - first) + n - first
            tl.store(output_norms + at, tl.sqrt_rn(total), mask=(n >= first) & (n < keys))
