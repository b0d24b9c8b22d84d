#!/bin/sh
# Makes the tables, maps, overlap and page of results/ewt5-minilm and results/gates from studies of their runs, without
# training, corpus or network (docs/guides/records.md).
#
#   sh results/rebuild.sh [STUDY [RESULTS]]       # results/ewt5-minilm/records and results, if not given
set -eu
records=${1:-results/ewt5-minilm/records}
out=${2:-results}
started=$(mktemp)
part=$(mktemp -d)/table.md # a table that becomes a section of a page
section() { printf '\n## %s\n\n' "$1"; } # a heading of a page that holds several tables

# Single tasks, all pairs, all five
mtlprune table "$records:none-*,sampled-*" --out "$out/ewt5-minilm/scores.md"
mtlprune table "$records:none-*,sampled-*" --split dev --out "$out/ewt5-minilm/scores-dev.md"
mtlprune table "$records:none-???-?,none-mtl5-?" --split test --margin 1.0 --out "$out/ewt5-minilm/records.md"
mtlprune table "$records:none-???-?,none-mtl5-?,gates-*,static-*,importance-*,random-*" --out "$out/ewt5-minilm/pruning.md"

# Task runs without word dropout, which the analyses of the source papers read
if [ -d results/five-papers/records ]; then
    mtlprune table "results/five-papers/records:none-*" --split test --out "$out/five-papers/scores.md"
fi

# Which heads do tasks claim
mtlprune claims "$records:gates-*" --palette rgb --format png --bare --out "$out/gates/overlap" > /dev/null
for kind in frozen stable; do # studies of their own, under results/claims/records
    test -d "results/claims/records/$kind" || continue
    mkdir -p "$out/claims/$kind" && mtlprune claims "results/claims/records/$kind" --format png \
        --out "$out/claims/$kind" > /dev/null
done
if [ -d results/claims/cross ]; then # needs the weights of its runs, so it is shown again from its tables
    mkdir -p "$out/claims/cross" && mtlprune analyze show results/claims/cross --out "$out/claims/cross" --format png > /dev/null
fi
for format in md json; do
    mtlprune table "$records:none-???-?,none-mtl5-?,gates-*,importance-*,random-*" --split dev \
        --format "$(test $format = md && echo markdown || echo json)" --out "$out/gates/scores.$format"
done

if [ -d results/mpnet/records ]; then # gates of a second encoder
    mtlprune claims results/mpnet/records --bare --format png --out "$out/mpnet/gates" > /dev/null
fi

# Free numbers of heads, and the speed of pruned models
if [ -d results/gates/records ]; then
    python results/gates/free_head_numbers.py results/gates/records $(test ! -d results/speed/pruned || echo results/speed/pruned) > "$out/gates/free-head-numbers.md"
fi

# Best heads by layer and accuracy, and differences to STL, of the probes
for kind in seeds pairs; do
    test -d results/probes/$kind || continue
    mtlprune analyze show results/probes/$kind --out "$out/probes/$kind" --format png > /dev/null
done
test -d results/probes/pairs && python results/probes/pairs.py results/probes/pairs > "$out/probes/pairs.md"

# Gates directly against random heads of the same layers, and whether importance costs less than a point, on test
if grep -q '"random-' "$records/study.json"; then
    printf '# Gates and importance against other choices of heads\n' > "$out/gates/tests.md"
fi
for kind in '???' mtl5; do
    label=$(test "$kind" = mtl5 && echo MTL-5 || echo STL)
    grep -q "\"random-$(echo "$kind" | tr '?' '.')-" "$records/study.json" || continue
    mtlprune table "$records:gates-$kind-?,random-$kind-?" --split test --against "$label, random heads" --margin 1.0 \
        --out "$part"
    { section "Gates and random heads, $label"; cat "$part"; } >> "$out/gates/tests.md"
    mtlprune table "$records:none-$kind-?,importance-$kind-?" --split test --against "$label" --margin 1.0 --out "$part"
    { section "Importance and all heads, $label"; cat "$part"; } >> "$out/gates/tests.md"
done

if [ -d results/claims/records ]; then
    mkdir -p "$out/claims" && printf '# Numbers that the pages on claims quote\n' > "$out/claims/numbers.md"
fi

# What needs Results of analyses too, which are kept beside the pages
if [ -d results/probes/seeds ]; then
    python results/claims/probes_of_claimed_heads.py results/probes/seeds results/probes/random results/claims/stable > "$out/claims/probes-of-claimed-heads.md"
    {
        section "Overlap before and after fine-tuning"
        python results/claims/after_finetuning.py results/claims/records/regimes:untuned results/claims/records/regimes:frozen
    } >> "$out/claims/numbers.md"
    mkdir -p "$out/seeds"
    python results/seeds/by_seed.py results/seeds/syntax results/seeds/degeneration results/seeds/smoothing \
        > "$out/seeds/tables.md"
fi

if [ -d results/degeneration/lm ]; then # language models with and without CosReg
    mkdir -p "$out/degeneration/lm"
    python results/degeneration/seeds.py results/degeneration/lm base cosreg-0.1 cosreg-1 > "$out/degeneration/lm/seeds.md"
fi

# Five tasks against each four
if [ -d results/claims/records/leave-one-out ]; then
    mkdir -p "$out/claims"
    mtlprune table results/claims/records/leave-one-out --split test --against MTL-5 --format json --out "$out/claims/leave-one-out.json"
    python results/claims/leave_one_out.py "$out/claims/leave-one-out.json" results/claims/gradients > "$out/claims/leave-one-out-numbers.md"
    if [ -f results/claims/cosines-in-training.json ]; then
        python results/claims/cosines_in_training.py show results/claims/cosines-in-training.json \
            "$out/claims/leave-one-out.json" > "$out/claims/cosines-in-training.md"
    fi
    rm "$out/claims/leave-one-out.json"
    mkdir -p "$out/why" && python results/why/sum_of_maps.py results/claims/gradients > "$out/why/sum-of-maps.md"
fi

if [ -d results/claims/records/variance ]; then # on halves of the data
    mkdir -p "$out/claims"
    set --
    for kind in gates topk fisher importance; do set -- "$@" "$kind=results/claims/records/variance:$kind"; done
    { section "Agreement of selectors"; python results/claims/phi.py "$@"; } >> "$out/claims/numbers.md"
fi
if [ -d results/claims/records/claimed-heads-only ]; then # stable heads alone
    mkdir -p "$out/claims"
    python results/claims/claimed_heads_only.py results/claims/records/claimed-heads-only > "$out/claims/claimed-heads-only.md"
fi
if [ -d results/claims/records/stable-mtl5 ]; then # joint training's stable claims beside those of five tasks
    mkdir -p "$out/claims"
    mtlprune claims results/claims/records/stable 'results/claims/records/stable-mtl5:stable-*' > "$out/claims/stable-mtl5.md"
fi
if [ -d results/claims/records/regimes ]; then # frozen, free and dynamic selection side by side, and longer gates
    kept=results/claims/records
    mkdir -p "$out/claims/regimes"
    set --
    for kind in frozen free dynamic untuned random; do
        mtlprune claims "$kept/regimes:$kind-*" > "$out/claims/regimes/$kind.md"
        set -- "$@" "$kind=$kept/regimes:$kind"
    done
    {
        section "Agreement of regimes"
        python results/claims/phi.py "$@"
        section "Selections from one encoder"
        python results/claims/repeated_selections.py "$kept/regimes:random" "$kept/regimes:untuned"
        section "Numbers of claimed heads"
        python results/claims/counts.py "$kept" "$records"
    } >> "$out/claims/numbers.md"
    python results/claims/cost_with_fewer_heads.py "$records" > "$out/gates/cost-with-fewer-heads.md"
    for task in TASK mtl5; do # gates that train with the encoder against random heads closed with their noise
        python results/claims/claimed_heads_only.py "$kept/noise" "gates=dynamic-$task-own" "random=random-gates-$task-own" \
            "schedule=random-heads-$task-own" > "$out/claims/regimes/gates-random-$task.md"
    done
fi
if [ -d results/claims/records/updates ]; then
    set --
    for kind in updates-252 updates-1008 updates-4032 core subset; do
        grep -q "\"$kind-" results/claims/records/updates/study.json || continue
        set -- "$@" "$kind=results/claims/records/updates:$kind"
    done
    { section "Agreement by updates"; python results/claims/phi.py "$@"; } >> "$out/claims/numbers.md"
fi

# Fusion beside none, on dev
test -d results/fusion/records && fused=results/fusion/records || fused=
if [ -n "$fused" ]; then
    mkdir -p "$out/fusion" && printf '# Fusion by a gate against no fusion, on dev\n' > "$out/fusion/gate.md"
fi
for kind in ${fused:+pos dep mtl5}; do
    label=$(test $kind = mtl5 && echo MTL-5 || echo STL)
    mtlprune table "$fused:gate-$kind-?" "$records:none-$kind-?" --split dev --against "$label" \
        --margin 1.0 --out "$part"
    { section "$kind"; cat "$part"; } >> "$out/fusion/gate.md"
done
test -z "$fused" || mtlprune table "$fused" "$records:none-pos-?,none-dep-?,none-mtl5-?" --split dev --out "$out/fusion/scores.md"

if [ -d results/five-papers/records ]; then # four forms without word dropout
    json=$(mktemp -d)
    printf '# Four forms of fusion against no fusion, on test\n' > "$out/fusion/forms-tests.md"
    for kind in dep mtl5; do
        label=$(test $kind = mtl5 && echo MTL-5 || echo STL)
        set -- "results/five-papers/records:none-$kind-?" "results/five-papers/records:fusion-*-$kind-?" --split test --against "$label" --margin 1.0
        mtlprune table "$@" --out "$part"
        { section "$kind"; cat "$part"; } >> "$out/fusion/forms-tests.md"
        mtlprune table "$@" --format json --out "$json/$kind.json"
        mtlprune table "results/five-papers/records:fusion-early-$kind-?,fusion-late-$kind-?" --split test --margin 1.0 \
            --against "$label, fusion gate of layers 1,2,3" --format json --out "$json/$kind-late.json"
    done
    python results/fusion/forms.py "$json/dep.json" "$json/mtl5.json" "$json/dep-late.json" "$json/mtl5-late.json" \
        results/fusion/smoothing > "$out/fusion/forms.md"
    rm -r "$json"
fi

# Do treatments close the gap between MTL and STL
if [ -d results/treatments/records ]; then
    set -- costs=results/treatments/costs.json --format png
    mtlprune analyze treatments "$records:none-???-?,none-mtl5-?,sampled-*" results/treatments/records \
        "$@" --out "$out/treatments/test" > /dev/null
    python results/treatments/heads.py results/treatments/heads > "$out/treatments/heads.md"
    mtlprune analyze treatments results/treatments/full/records "$@" --out "$out/treatments/full" > /dev/null
fi

# Is there a fight over heads: Results that need the runs' weights are shown again from their tables
if [ -d results/fight ]; then
    r=results/fight/records
    mtlprune analyze scarcity "$r/minilm:72-own-*" "$r/minilm:18-*" without=srl --format png --out "$out/fight/scarcity" > /dev/null
    for kind in joint updates control other-places; do
        without=$(test $kind = control -o $kind = other-places && echo without=srl || true)
        mtlprune analyze scarcity "groups=results/fight/$kind/groups.yaml" $without --format png \
            --out "$out/fight/$kind" > /dev/null
    done
    for kind in exchange natural exchange-mpnet roles roles-mpnet cross/masc cross/mpnet-ewt5 claimed-heads-only/ewt5 \
        claimed-heads-only/masc claimed-heads-only/mpnet-ewt5 claimed-heads-only/mpnet-masc; do
        test -d "results/fight/$kind" || continue
        mtlprune analyze show "results/fight/$kind" --out "$out/fight/$kind" --format png > /dev/null
    done
    # claims on MASC (with DEP of GUM: masc-claims.md), on MPNet, and across corpora
    set -- corpora-minilm results/claims/records/stable:stable $r/masc:stable "$out/fight/corpora"
    python results/fight/corpora.py "$@" > "$out/fight/corpora.md"
    python results/fight/corpora.py corpora-mpnet $r/mpnet:stable-ewt5 $r/mpnet:stable-masc > "$out/fight/corpora-mpnet.md"
    mtlprune claims "$r/masc:stable-*" "$r/gum:stable-*" > "$out/fight/masc-claims.md"
    mtlprune claims "$r/mpnet:stable-masc-*" > "$out/fight/mpnet-masc-claims.md"
    for place in masc:masc:stable mpnet:mpnet:stable-ewt5 mpnet-masc:mpnet:stable-masc; do
        name=${place%%:*}
        mtlprune claims "$r/${place#*:}-*" --format png --out "$out/fight/$name" > /dev/null
    done
    mtlprune table "$r/mpnet:*-ewt5-???-?" --out "$out/fight/mpnet/scores.md"
    python results/fight/planted.py show results/fight/planted.jsonl > "$out/fight/planted.md"
fi

# One page of everything, with the analyses that are there
set --
for folder in claims/stable claims/cross claims/gradients treatments/test fight/scarcity fight/roles fight/exchange smoothing dissection/tasks syntax/runs degeneration heads; do
    if ls "$out/$folder"/*.json > /dev/null 2>&1; then set -- "$@" --analyses "$out/$folder"; fi
done
if [ -f "$out/probes/probes.json" ]; then set -- "$@" --analyses "$out/probes"; fi
mtlprune report "$records" "$@" --out "$out/ewt5-minilm/report.html"

# Pretrainings: curves and breaks, of the first runs and of the two stages
p=results/pretraining/records
if [ -d $p ]; then
    mtlprune report $p/base $p/sas-minus $p/sas-plus $p/sas-minus-released $p/sas-minus-weak $p/sas-plus-weak \
        --out "$out/pretraining" > /dev/null
    mtlprune report "$p:base-?" --out "$out/pretraining/two-stages/base" > /dev/null
    mtlprune report $p/base-1 $p/sas-plus-1 $p/sas-minus-1 $p/released-early-1 $p/released-during-1 $p/released-end-1 \
        $p/released-late-1 --out "$out/pretraining/two-stages/arms" > /dev/null
fi

# Single tasks and joint training at settings that were tuned on dev
if [ -d results/baselines/records ]; then
    mkdir -p "$out/baselines"
    python results/baselines/tuning.py results/baselines/records/tuning > "$out/baselines/tuning.md"
    mtlprune analyze scarcity 'results/baselines/records/tuned:72-own-*' 'results/baselines/records/tuned:18-*' without=srl \
        --format png --out "$out/baselines/scarcity" > /dev/null
    mtlprune analyze scarcity groups=results/baselines/gaps/groups.yaml without=srl --format png \
        --out "$out/baselines/gaps" > /dev/null
    mtlprune table 'results/baselines/records/tuned:72-own-*' --out "$out/baselines/scores.md"
    mtlprune table 'results/baselines/records/tuned:72-own-*-[123]' results/baselines/records/sampled \
        --out "$out/baselines/sampled.md"
    mtlprune table 'results/baselines/records/full:full-*' --out "$out/baselines/full.md"
    mtlprune claims 'results/baselines/records/tuned:claims-*' --format png --out "$out/baselines/claims" > /dev/null
    mtlprune report 'results/baselines/records/tuned:72-own-*,claims-*' \
        --analyses "$out/baselines/claims" --analyses "$out/baselines/scarcity" --out "$out/baselines/report.html"
fi

# Tasks of whole sentences
if [ -d results/sentences/records ]; then
    sentences=results/sentences/records
    mkdir -p "$out/sentences"
    python results/sentences/predictions.py $sentences results/sentences/full > "$out/sentences/predictions.md"
    mtlprune table "$sentences:none-*,random-*,words-*" --out "$out/sentences/scores.md"
    mtlprune table "$sentences:none-[pdt]*-?,few-[pdt]*-?" --out "$out/sentences/heads.md"
    mtlprune table results/sentences/full --out "$out/sentences/full.md"
    mtlprune analyze scarcity groups=results/sentences/groups.yaml --format png --out "$out/sentences/gaps" > /dev/null
    mtlprune claims "$sentences:stable-pos-?,stable-dep-?,stable-type-?,stable-prominence-?,stable-transition-?" --bare \
        --format png --out "$out/sentences/claims" > /dev/null
fi

# Why joint training costs points
if [ -d results/why/records/dep ]; then
    mtlprune analyze scarcity groups=results/why/dep/groups.yaml margin=0.5 --out "$out/why/dep" > /dev/null
fi
if [ -f results/why/published-selectors.json ]; then
    mkdir -p "$out/why"
    python results/why/published_selectors.py show results/why/published-selectors.json > "$out/why/published-selectors.md"
fi
# These need the weights of their runs, so they are shown again from their tables.
for place in cross cross-masc cross-mpnet amplify-1.5 amplify-1.25 amplify-2 closing closing-mpnet closing-singles closing-mpnet-singles closing-mpnet-ner closing-mpnet-con gates-joint gates-singles; do
    test -d "results/why/$place" || continue
    mkdir -p "$out/why/$place" && mtlprune analyze show "results/why/$place" --out "$out/why/$place" --format png > /dev/null
done
if [ -d results/why/records/equal_loss ]; then
    planned="results/why/records/equal_loss:63-???-*,126-???-*,252-*,504-*,1008-*" # without joint runs of 63 and 126 updates
    mtlprune analyze equal_loss "$planned" --split test without=ner --format png --out "$out/why/equal_loss" > /dev/null
    mtlprune analyze equal_loss "$planned" --split test without=ner curve=linear > "$out/why/linear-curve.md"
    mtlprune analyze equal_loss results/why/records/equal_loss --split test without=ner --format png --out "$out/why/all-updates" > /dev/null
    python results/why/cost_by_updates.py "$out/why/cost-by-updates.png"
fi
if [ -f results/why/consistency.json ]; then
    mkdir -p "$out/why" && python results/why/consistency.py show results/why/consistency.json > "$out/why/consistency.md"
fi
if [ -d results/why/records/rare ]; then
    mkdir -p "$out/why/rare"
    python results/why/rare_tasks.py results/why/records/rare "$out/why/rare" > "$out/why/rare/tables.md"
fi
if [ -d results/why/rare ]; then # the last of the five experiments
    mkdir -p "$out/why" && python results/why/primaries.py "$out/why/primaries" > "$out/why/primaries.md"
fi

# What was found, from the Results above
if [ "$out" = results ] && [ -f results/findings.yaml ]; then python results/findings.py; fi

# Hours of all committed runs, by machine
if [ "$out" = results ] && [ -f results/compute.py ]; then python results/compute.py results > results/compute.md; fi

# Pictures and Markdown of Results that no page links
if [ "$out" = results ] && [ -f results/unshown.py ]; then python results/unshown.py "$started"; fi
rm -r "$started" "${part%/*}"
