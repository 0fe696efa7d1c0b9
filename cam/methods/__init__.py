"""The table of explanation methods, with the function, the cost and the abilities of each.

The functions that compute the maps need torch, so the table names them, and they are imported when
a map is made. A process that only reads requests and draws maps imports the table alone.

A package may add methods of its own: each entry point of the group `gradcam.methods` is a `Method`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from cam.errors import UnknownMethod, did_you_mean
from cam.extensions import added
from cam.methods.method import INPUT as INPUT
from cam.methods.method import Method as Method

GROUP: Final = "gradcam.methods"
"""The group of entry points whose objects are further methods."""
RESERVED: Final = ("auto", "input")

# What the methods of a family have in common; an entry of the table names what is its own.
_by_weights: Final = partial(
    Method, family="gradients", cost="one backward", formula="weights", signed=True
)
_by_components: Final = partial(
    Method, family="components", cost="one forward", formula="map", class_dependence="none"
)
_in_steps: Final = partial(
    Method, family="perturbation", cost="N forwards", formula="steps", signed=True
)
_at_input: Final = partial(
    Method, family="pixels", cost="one backward", formula="steps", at="input"
)
_by_attention: Final = partial(
    _at_input,
    family="attention",
    unsuited="cam.methods.attention:unsuited",
    audited=True,
)

_BUILT_IN: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        _by_weights(
            "gradcam",
            "channels weighted by their mean gradient",
            function="cam.methods.gradient_weights:gradcam",
            paper=(
                'Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via '
                'Gradient-based Localization", ICCV 2017, equations 1 and 2'
            ),
            audited=True,
        ),
        _by_weights(
            "gradcam++",
            "channels weighted by their positive gradients, rare ones more",
            function="cam.methods.gradient_weights:gradcam_plusplus",
            paper=(
                'Chattopadhay et al., "Grad-CAM++: Generalized Gradient-based Visual Explanations'
                ' for Deep Convolutional Networks", WACV 2018, equations 5 and 19'
            ),
            audited=True,
        ),
        _in_steps(
            "smoothgradcam++",
            "Grad-CAM++ with its derivatives averaged over noisy copies of the photo",
            function="cam.methods.derivatives:smoothgradcam_plusplus",
            family="gradients",
            paper=(
                'Omeiza et al., "Smooth Grad-CAM++: An Enhanced Inference Level Visualization '
                'Technique for Deep Convolutional Neural Network Models", 2019, equations 4 and 5'
            ),
            cost="N backwards",
            budget=25,
        ),
        _by_weights(
            "hirescam",
            "gradient times activation at each position: what the model really used",
            function="cam.methods.gradient_weights:hirescam",
            paper=(
                'Draelos & Carin, "Use HiResCAM instead of Grad-CAM for Faithful Explanations of '
                'Convolutional Neural Networks", 2020, equation 6'
            ),
            audited=True,
        ),
        _by_weights(
            "elementwise",
            "the positive part of gradient times activation, channel by channel",
            function="cam.methods.gradient_weights:elementwise",
            paper="none; GradCAMElementWise of pytorch-grad-cam (Gildenblat et al., 2021)",
            signed=False,
            audited=True,
        ),
        _by_weights(
            "layercam",
            "activations weighted by their own positive gradients: for shallow layers too",
            function="cam.methods.gradient_weights:layercam",
            paper=(
                'Jiang et al., "LayerCAM: Exploring Hierarchical Class Activation Maps for '
                'Localization", IEEE TIP 2021, equations 5 to 7'
            ),
            audited=True,
        ),
        _by_weights(
            "xgradcam",
            "channels weighted by gradients where they are active",
            function="cam.methods.gradient_weights:xgradcam",
            paper=(
                'Fu et al., "Axiom-based Grad-CAM: Towards Accurate Visualization and Explanation'
                ' of CNNs", BMVC 2020, equation 8'
            ),
            audited=True,
        ),
        _in_steps(
            "shapleycam",
            "channels weighted by gradient and curvature, their Shapley value to second order",
            function="cam.methods.derivatives:shapleycam",
            family="gradients",
            paper='Cai, "CAMs as Shapley Value-based Explainers", 2025, equation 18',
            cost="two backwards",
        ),
        _by_weights(
            "finercam",
            "Grad-CAM of what tells the class from the three most like it",
            function="cam.methods.gradient_weights:gradcam",
            paper=(
                'Zhang et al., "Finer-CAM: Spotting the Difference Reveals Finer Details for '
                'Visual Explanation", CVPR 2025, equation 5'
            ),
            score="cam.methods.comparison:finer",
            unsuited="cam.methods.comparison:unsuited",
            audited=True,
        ),
        _by_weights(
            "refinecam",
            "the product of the maps of Grad-CAM++ over the network's stages: a fine map",
            function="cam.methods.gradient_weights:gradcam_plusplus",
            paper='Domeniconi et al., "How to Evaluate and Refine your CAM", 2026',
            signed=False,
            levels="stages",
            fusion="cam.methods.refinement:refined",
            audited=True,
        ),
        _by_weights(
            "odam",
            "of one box of a detector: gradient times activation at the levels it is made from",
            function="cam.methods.gradient_weights:hirescam",
            family="boxes",
            paper=(
                'Zhao & Chan, "ODAM: Gradient-based Instance-Specific Visual Explanations for '
                'Object Detection", ICLR 2023, equations 1 and 2'
            ),
            levels="boxes",
            fusion="cam.detectors.methods:fused_levels",
            score="cam.detectors.methods:box_score",
            unsuited="cam.detectors.methods:unsuited",
        ),
        _in_steps(
            "cam",
            "channels weighted as the linear head weights their mean; exact, where there is one",
            function="cam.methods.head:cam",
            family="components",
            paper=(
                'Zhou et al., "Learning Deep Features for Discriminative Localization", CVPR '
                "2016, equation 2"
            ),
            cost="one forward",
            unsuited="cam.methods.head:unsuited",
        ),
        _by_components(
            "eigencam",
            "the activations' first principal component, whatever the class",
            function="cam.methods.components:eigencam",
            paper=(
                'Muhammad & Yeasin, "Eigen-CAM: Class Activation Map using Principal Components",'
                " IJCNN 2020, section III"
            ),
            audited=True,
        ),
        Method(
            "eigengradcam",
            "the first principal component of gradient times activation",
            cost="one backward",
            formula="map",
            function="cam.methods.components:eigengradcam",
            family="components",
            paper="none; EigenGradCAM of pytorch-grad-cam (Gildenblat et al., 2021)",
            audited=True,
        ),
        Method(
            "segeigencam",
            "the first principal component of activations weighted by gradients of either sign",
            cost="one backward",
            formula="map",
            function="cam.methods.components:segeigencam",
            family="components",
            paper=(
                'Chung & Ying, "Seg-Eigen-CAM: Eigen-Value-Based Visual Explanations for Semantic'
                ' Segmentation Models", Applied Sciences 15 (13), 2025, equations 10 to 13'
            ),
            class_dependence="weak",
        ),
        _by_components(
            "kpcacam",
            "the activations' first kernel principal component, whatever the class",
            function="cam.methods.components:kpcacam",
            paper=(
                'Karmani et al., "KPCA-CAM: Visual Explainability of Deep Computer Vision Models '
                'Using Kernel PCA", 2024'
            ),
        ),
        _by_components(
            "fem",
            "where channels are two standard deviations above their mean, whatever the class",
            function="cam.methods.components:fem",
            paper=(
                'Fuad et al., "Features Understanding in 3D CNNs for Actions Recognition in '
                'Video", IPTA 2020'
            ),
            audited=True,
        ),
        _in_steps(
            "scorecam",
            "channels weighted by the score of the photo seen through them",
            function="cam.methods.perturbation:scorecam",
            paper=(
                'Wang et al., "Score-CAM: Score-Weighted Visual Explanations for Convolutional '
                'Neural Networks", CVPR workshops 2020, algorithm 1'
            ),
            budget=2048,
        ),
        _in_steps(
            "sscam",
            "Score-CAM with noise on each channel, ten times",
            function="cam.methods.perturbation:sscam",
            paper=(
                'Wang et al., "SS-CAM: Smoothed Score-CAM for Sharper Visual Feature '
                'Localization", 2020, section 3'
            ),
            budget=2560,
        ),
        _in_steps(
            "iscam",
            "Score-CAM with each channel's part in the photo growing in ten steps",
            function="cam.methods.perturbation:iscam",
            paper=(
                'Naidu et al., "IS-CAM: Integrated Score-CAM for axiomatic-based explanations", '
                "2020, algorithm 1"
            ),
            budget=2560,
        ),
        _in_steps(
            "ablationcam",
            "channels weighted by what the score loses without them",
            function="cam.methods.perturbation:ablationcam",
            paper=(
                'Desai & Ramaswamy, "Ablation-CAM: Visual Explanations for Deep Convolutional '
                'Network via Gradient-free Localization", WACV 2020, equations 5 and 6'
            ),
            budget=2048,
            replays=True,
            unsuited="cam.methods.perturbation:unsuited_to_remove",
        ),
        _in_steps(
            "reciprocam",
            "the score of each position alone; behind a linear head CAM, without a pass",
            function="cam.methods.perturbation:reciprocam",
            paper=(
                'Byun & Lee, "ReciproCAM: Lightweight Gradient-free Class Activation Map for '
                'Post-hoc Explanations", CVPR workshops 2024'
            ),
            budget=4096,
            replays=True,
        ),
        Method(
            "opticam",
            "the channels' weights that make the photo, seen through the map, score highest",
            cost="N backwards",
            formula="steps",
            function="cam.methods.optimisation:opticam",
            family="perturbation",
            paper=(
                'Zhang et al., "Opti-CAM: Optimizing saliency maps for interpretability", CVIU 2024'
            ),
            budget=100,
            to_image=True,
        ),
        _at_input(
            "rise",
            "the photo through random masks: nothing but inputs and probabilities",
            function="cam.methods.perturbation:rise",
            family="perturbation",
            paper=(
                'Petsiuk, Das & Saenko, "RISE: Randomized Input Sampling for Explanation of '
                'Black-box Models", BMVC 2018, equation 6'
            ),
            cost="N forwards",
            budget=1000,
            unsuited="cam.methods.perturbation:unsuited_to_weigh",
        ),
        _at_input(
            "drise",
            "of one box of a detector: the photo through random masks, and how like it is found",
            function="cam.detectors.methods:drise",
            family="boxes",
            paper=(
                'Petsiuk et al., "Black-box Explanation of Object Detectors via Saliency Maps", '
                "CVPR 2021, equations 3 to 8"
            ),
            cost="N forwards",
            budget=2000,
            unsuited="cam.detectors.methods:unsuited",
        ),
        _in_steps(
            "occlusion",
            "what the probability loses behind a gray window",
            function="cam.methods.perturbation:occlusion",
            paper=(
                'Zeiler & Fergus, "Visualizing and Understanding Convolutional Networks", ECCV '
                "2014, section 4.2"
            ),
            at="input",
            budget=196,
        ),
        _at_input(
            "gradient",
            "how much each pixel matters, either way",
            function="cam.methods.pixels:gradient",
            paper=(
                'Simonyan, Vedaldi & Zisserman, "Deep Inside Convolutional Networks: Visualising '
                'Image Classification Models and Saliency Maps", ICLR workshop 2014, section 3'
            ),
        ),
        _at_input(
            "smoothgrad",
            "the gradient at each pixel, averaged over noisy copies of the photo",
            function="cam.methods.pixels:smoothgrad",
            paper='Smilkov et al., "SmoothGrad: removing noise by adding noise", 2017, section 3',
            cost="N backwards",
            budget=25,
        ),
        _in_steps(
            "integratedgradients",
            "what each pixel adds to the score on the way from gray to the photo",
            function="cam.methods.pixels:integratedgradients",
            family="pixels",
            paper=(
                'Sundararajan, Taly & Yan, "Axiomatic Attribution for Deep Networks", ICML 2017, '
                "equation 3"
            ),
            cost="N backwards",
            at="input",
            budget=50,
        ),
        _in_steps(
            "expectedgradients",
            "what each pixel adds to the score on the way from many pictures to the photo",
            function="cam.methods.pixels:expectedgradients",
            family="pixels",
            paper=(
                'Erion et al., "Improving performance of deep learning models with axiomatic '
                'attribution priors and expected gradients", Nature Machine Intelligence 2021'
            ),
            cost="N backwards",
            at="input",
            budget=200,
        ),
        _at_input(
            "guidedbackprop",
            "the gradient at each pixel through positive evidence alone: edges",
            function="cam.methods.pixels:guidedbackprop",
            paper=(
                'Springenberg et al., "Striving for Simplicity: The All Convolutional Net", ICLR '
                "workshop 2015, section 3.4"
            ),
            class_dependence="weak",
            unsuited="cam.methods.pixels:unsuited",
        ),
        Method(
            "guidedgradcam",
            "guided backpropagation where Grad-CAM is warm",
            cost="one backward",
            formula="steps",
            function="cam.methods.pixels:guidedgradcam",
            family="pixels",
            paper=(
                'Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via '
                'Gradient-based Localization", ICCV 2017, section 3.2'
            ),
            to_image=True,
            unsuited="cam.methods.pixels:unsuited",
        ),
        _at_input(
            "fullgrad",
            "the score shared out among the pixels and every bias of the network",
            function="cam.methods.biases:fullgrad",
            paper=(
                'Srinivas & Fleuret, "Full-Gradient Representation for Neural Network '
                'Visualization", NeurIPS 2019, equation 5 and section 4'
            ),
            class_dependence="weak",
            unsuited="cam.methods.biases:unsuited",
        ),
        _at_input(
            "lrp",
            "the score shared out backwards from layer to layer, by rules",
            function="cam.methods.relevance:lrp",
            paper=(
                'Bach et al., "On Pixel-Wise Explanations for Non-Linear Classifier Decisions by '
                'Layer-Wise Relevance Propagation", PLoS ONE 2015'
            ),
            signed=True,
            unsuited="cam.methods.relevance:unsuited",
        ),
        _at_input(
            "attnlrp",
            "a transformer's score shared out backwards, through attention by rules of its own",
            function="cam.methods.attnlrp:attnlrp",
            family="attention",
            paper=(
                'Achtibat et al., "AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for '
                'Transformers", ICML 2024, equations 8 to 15'
            ),
            signed=True,
            unsuited="cam.methods.attnlrp:unsuited",
            audited=True,
        ),
        _by_attention(
            "rollout",
            "attention followed from layer to layer, whatever the class",
            function="cam.methods.attention:rollout",
            paper=(
                'Abnar & Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020, section 3'
            ),
            cost="one forward",
            class_dependence="none",
        ),
        _by_attention(
            "chefer",
            "attention followed from layer to layer, each layer's weighted by its gradient",
            function="cam.methods.attention:chefer",
            paper=(
                'Chefer, Gur & Wolf, "Generic Attention-model Explainability for Interpreting Bi-'
                'Modal and Encoder-Decoder Transformers", ICCV 2021, equations 5 and 6'
            ),
        ),
        _by_attention(
            "agcam",
            "attention's gradient in each layer, gated by how alike query and key are",
            function="cam.methods.attention:agcam",
            paper=(
                'Leem & Seo, "Attention Guided CAM: Visual Explanations of Vision Transformer '
                'Guided by Self-Attention", AAAI 2024, equations 2 and 7'
            ),
        ),
        _by_attention(
            "legrad",
            "how each layer's score rises with its attention",
            function="cam.methods.attention:legrad",
            paper=(
                'Bousselham et al., "LeGrad: An Explainability Method for Vision Transformers via'
                ' Feature Formation Sensitivity", ICCV 2025, equations 4 to 8'
            ),
        ),
        _by_attention(
            "gradeclip",
            "what the class token reads of each patch, its attention loosened",
            function="cam.methods.attention:gradeclip",
            paper=(
                'Zhao et al., "Gradient-based Visual Explanation for Transformer-based CLIP", '
                "ICML 2024"
            ),
            signed=True,
        ),
    )
}


def _problem(method: Method) -> str | None:
    if (method.levels is None) != (method.fusion is None):
        return "levels and fusion belong together"
    return None


METHODS: Final[dict[str, Method]] = _BUILT_IN | {
    method.name: method
    for method in added(GROUP, Method, __name__, {*_BUILT_IN, *RESERVED}, _problem)
}
"""Name → method, those of other packages last."""


def method_named(name: str) -> Method:
    """Return the method of that name in `METHODS`.

    Raises:
        UnknownMethod: if there is no such method; the message lists the methods that exist.
    """
    try:
        return METHODS[name]
    except (KeyError, TypeError):  # an unhashable value is not a name
        raise UnknownMethod(
            f"there is no method {name!r}; the methods are {', '.join(METHODS)}"
            f"{did_you_mean(name, METHODS)}"
        ) from None
