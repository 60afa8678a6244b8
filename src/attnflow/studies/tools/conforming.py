"""For the type checker alone: every study is a `Study`, and its members agree on what a spec and a result are."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnflow import studies
    from attnflow.studies import (
        blocks,
        bridges,
        centers,
        circle,
        clustering,
        cold,
        consensus,
        context,
        demo,
        equiangular,
        fashion,
        gaussians,
        geometries,
        heat,
        hemisphere,
        iterations,
        langevin,
        lipschitz,
        masked,
        metastable,
        middle,
        mixture,
        normalization,
        particles,
        phase,
        pictures,
        resnet,
        scores,
        support,
        transition,
    )
    from attnflow.studies.tools.study import R, S

    def conforms(study: studies.Study[S, R]) -> None: ...

    conforms(blocks)
    conforms(bridges)
    conforms(centers)
    conforms(circle)
    conforms(clustering)
    conforms(cold)
    conforms(consensus)
    conforms(context)
    conforms(demo)
    conforms(equiangular)
    conforms(fashion)
    conforms(gaussians)
    conforms(geometries)
    conforms(heat)
    conforms(hemisphere)
    conforms(iterations)
    conforms(langevin)
    conforms(lipschitz)
    conforms(masked)
    conforms(metastable)
    conforms(middle)
    conforms(mixture)
    conforms(normalization)
    conforms(particles)
    conforms(phase)
    conforms(pictures)
    conforms(resnet)
    conforms(scores)
    conforms(support)
    conforms(transition)
