"""A vision–language model of transformers, with its processor: questions in, hidden states out."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from cachetools import LRUCache
from numpy.typing import NDArray
from torch import Tensor, nn

from cam.answers.answer import LEAST_SIDE
from cam.answers.encoding import Encoding, Prefix, first_of
from cam.answers.image_tokens import Tile, tiles_of
from cam.counts import counted
from cam.errors import InvalidImages, InvalidPrompt, ModelError
from cam.prompts import has_control_characters

MAX_CHARACTERS: Final = 20_000
"""Largest length of a question or of a given answer."""
TRIAL: Final = (96, 144)
"""Height and width of the picture by which a model is checked."""
TRIAL_TOKENS: Final = 6
"""Number of tokens that the check generates."""
MOVED: Final = 8
"""Number of image tokens under whose places the check changes the picture."""
ENOUGH: Final = 6
"""Number of them that must be found where they are expected."""
COLOURS: Final = ((0, 0, 0), (255, 255, 255), (255, 0, 128))
"""Colours that the check paints there."""
SIZES: Final = 16
"""Number of sizes of photos whose tiles are kept."""
Photo = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Asked:
    """A question about a photo, as the model reads it."""

    photo: Photo
    text: str
    """The question as the chat template words it."""
    inputs: Mapping[str, Any]
    """The processor's inputs on the model's device, `input_ids` (1, n) among them."""
    image: Tensor
    """Positions of the image tokens, int64 (N,)."""
    words: Tensor
    """Positions of the question's own tokens, without those of the chat template around it, int64
    (T,)."""
    tiles: list[Tile]
    spaced: bool
    """Whether an answer needs no space before its first word."""
    encoded: Encoding

    @property
    def length(self) -> int:
        """Number of tokens, n."""
        return int(self.inputs["input_ids"].shape[1])


@dataclass(frozen=True, eq=False)
class Read:
    """What the model makes of tokens."""

    hidden: Tensor
    """The last hidden states, from which the output embedding makes logits: float32 (n, D)."""
    logits: Tensor
    """Logits of the next token, for the tokens that they were asked for: float32 (k, V)."""


class VisionLanguageModel:
    """A vision–language model of transformers, and its processor.

    Any model of `AutoModelForImageTextToText` whose image tokens stand in `input_ids` and lie on a
    grid of the photo: see `cam.answers.image_tokens`.
    """

    def __init__(self, model: Any, processor: Any, *, photos: int = 0) -> None:
        """Find the parts of the model.

        Args:
            photos: number of photos whose encodings are kept for further questions; 0 where the
                weights may change between two questions.

        Raises:
            ModelError: if it has no image tokens, no output embedding, or encodes no images.
        """
        self.model, self.processor = model.eval(), processor
        name = type(model).__name__
        config = model.config
        token = getattr(config, "image_token_id", None)
        token = getattr(config, "image_token_index", None) if token is None else token
        if token is None:
            raise ModelError(f"the config of a {name} names no image token (image_token_id)")
        self.image_token = int(token)
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ModelError(f"a {name} has no linear output embedding, which makes its logits")
        self.head = head
        if not hasattr(model, "get_image_features") or model.base_model is model:
            raise ModelError(f"a {name} has no get_image_features, which encodes images")
        tokenizer = getattr(processor, "tokenizer", None)
        if tokenizer is None:
            raise ModelError(f"a {type(processor).__name__} has no tokenizer")
        self.tokenizer = tokenizer
        self._special = {*tokenizer.all_special_tokens, *tokenizer.added_tokens_encoder}
        self._special_ids = {
            *tokenizer.all_special_ids,
            *tokenizer.added_tokens_encoder.values(),
            self.image_token,
        }
        text = config.get_text_config()
        self.longest = int(getattr(text, "max_position_embeddings", None) or 32_768)
        ends = getattr(model.generation_config, "eos_token_id", None)
        ends = tokenizer.eos_token_id if ends is None else ends
        self.ends: frozenset[int] = frozenset([ends] if isinstance(ends, int) else ends or ())
        self._encoded: LRUCache[bytes, Encoding] = LRUCache(photos)
        self._prefixes = False
        """Whether what the model makes of a photo does not depend on the question behind it: see
        `check`."""
        taken = inspect.signature(model.forward).parameters
        self._takes_encoded = "mm_encoder_outputs" in taken
        self._cache = "cache" if "cache" in taken else "past_key_values"  # before 5.24
        self._type = 0
        """Type of an answer's tokens among `token_type_ids` and the like."""
        self._tiles: LRUCache[tuple[int, int], list[Tile]] = LRUCache(SIZES)

    @property
    def device(self) -> torch.device:
        found: torch.device = next(iter(self.model.parameters())).device
        return found

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = self.model.dtype
        return found

    def ask(self, photo: Photo, question: str) -> Asked:
        """Return a question as the model reads it, in its chat template if it has one.

        Args:
            photo: RGB uint8 (H, W, 3).

        Raises:
            InvalidImages: if the photo is too small.
            InvalidPrompt: if the question is empty or too long, or has control characters or a
                special token of the model.
            ModelError: if the places of the image tokens cannot be found.
        """
        height, width = photo.shape[:2]
        if min(height, width) < LEAST_SIDE:
            raise InvalidImages(
                f"the photo has {width} × {height} pixels; a question needs {LEAST_SIDE} or more "
                "on each side"
            )
        question = self.checked(question, "question")
        self._ids(question)
        text = self._prompt(question)
        inputs = self._processed(photo, text)
        ids = inputs["input_ids"][0]
        is_image = ids == self.image_token
        image = is_image.nonzero()[:, 0]
        if not len(image):
            raise ModelError(f"the processor makes no image token ({self.image_token}) of a photo")
        if len(ids) >= self.longest:
            raise InvalidPrompt(
                f"photo and question have {len(ids)} tokens; the model reads at most {self.longest}"
            )
        if (tiles := self._tiles.get((height, width))) is None:
            self._tiles[height, width] = tiles = tiles_of(
                lambda one: self._processed(one, text), self.model, height, width, len(image)
            )
        words = self._question_in(ids, int(image[0]), text, question)
        spaced, encoded = text[-1:].isspace(), self._encoding_of(photo)
        return Asked(photo, text, inputs, image, words, tiles, spaced, encoded)

    def _question_in(self, ids: Tensor, image: int, text: str, question: str) -> Tensor:
        """Return the positions of a question's tokens: without those of the chat template, such as
        the name of who speaks next. Where they cannot be told from it, all that are behind the
        photo and no special tokens.

        Args:
            ids: the tokens of photo and question, int64 (n,).
            image: position of the first image token.
            text: the question as the chat template words it.
        """
        places = torch.arange(len(ids), device=ids.device)
        special = torch.isin(ids, torch.tensor(sorted(self._special_ids), device=ids.device))
        usual = (places > image) & ~special
        start = text.rfind(question)
        if start >= 0 and getattr(self.tokenizer, "is_fast", False):
            said = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            spans = said["offset_mapping"]
            own = [
                token
                for token, (first, last) in zip(said["input_ids"], spans, strict=True)
                if last > start and first < start + len(question)
            ]
            listed = ids.tolist()
            for first in range(len(listed) - len(own), image, -1):
                if own and listed[first : first + len(own)] == own:
                    return places[first : first + len(own)][usual[first : first + len(own)]]
        return usual.nonzero()[:, 0]

    def checked(self, text: str, what: str) -> str:
        """Return a question or an answer without spaces at its ends.

        Raises:
            InvalidPrompt: if it is empty or too long, or has control characters or a special token.
        """
        text = text.strip()
        if not text:
            example = "what is in the picture?" if what == "question" else "a red circle"
            raise InvalidPrompt(f"the {what} is empty; it is a text such as {example!r}")
        if len(text) > MAX_CHARACTERS:
            raise InvalidPrompt(
                f"the {what} has {len(text)} characters; it may have {MAX_CHARACTERS}"
            )
        if has_control_characters(text, "\n\r\t"):
            raise InvalidPrompt(f"the {what} {text[:80]!r} has control characters")
        for token in self._special:
            if token and token.strip() and token in text:
                raise InvalidPrompt(
                    f"the {what} has {token!r}, which is a special token of the model and no text"
                )
        return text

    def tokens_of(self, asked: Asked, answer: str) -> list[int]:
        """Return the tokens of a given answer.

        Raises:
            InvalidPrompt: if it is not text that the model can say, or too long.
        """
        answer = self.checked(answer, "answer")
        text = answer if asked.spaced else f" {answer}"
        tokens = self._ids(text)
        # Some tokenizers put a space before each text, which the answer has already: it is read
        # behind the end of the question.
        found = [one for one in self._special if one and one in asked.text]
        start = max((asked.text.rindex(one) + len(one) for one in found), default=0)
        end = asked.text[start:]
        before, both = self.tokenizer([end, end + text], add_special_tokens=False)["input_ids"]
        if before and both[: len(before)] == before:
            tokens = both[len(before) :]
        if asked.length + len(tokens) > self.longest:
            raise InvalidPrompt(
                f"photo, question and answer have {asked.length + len(tokens)} tokens; the model "
                f"reads at most {self.longest}"
            )
        return tokens

    def _ids(self, text: str) -> list[int]:
        """Return the tokens of a text.

        Raises:
            InvalidPrompt: if the tokenizer does not know one of its words.
        """
        tokens: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        unknown = self.tokenizer.unk_token_id
        if unknown is not None and unknown in tokens:
            for word in text.split():
                if unknown in self.tokenizer(word, add_special_tokens=False)["input_ids"]:
                    raise InvalidPrompt(f"the model's tokenizer does not know {word[:80]!r}")
        return tokens

    def with_photo(self, asked: Asked, photo: Photo, *, kept: bool = False) -> Asked:
        """Return the same question about another photo of the same size.

        Args:
            kept: whether the photo will be read again for further questions, and is not a change
                that is made once.
        """
        encoded = self._encoding_of(photo) if kept else Encoding()
        inputs = self._processed(photo, asked.text)
        return replace(asked, photo=photo, inputs=inputs, encoded=encoded)

    def _encoding_of(self, photo: Photo) -> Encoding:
        """Return the encoding of a photo, which is filled if it is known."""
        if not self._encoded.maxsize:
            return Encoding()
        digest = hashlib.blake2b(np.ascontiguousarray(photo).data, digest_size=16)
        digest.update(str(photo.shape).encode())
        return self._encoded.setdefault(digest.digest(), Encoding(kept=True))

    def read(
        self,
        asked: Asked,
        tokens: Sequence[int] = (),
        *,
        use_cache: bool = False,
        by_prefix: bool = False,
    ) -> tuple[Read, Any]:
        """Read the question and, behind it, tokens of an answer, in one pass. Return what the model
        makes of each token, with the logits from the question's last token on, and its cache.

        Args:
            use_cache: whether there is a cache, to read on from.
            by_prefix: whether the tokens up to the last one of the photo may be left out, if an
                earlier pass has read them. Hooks then see the others alone.
        """
        inputs = dict(asked.inputs)
        if tokens:
            more = torch.tensor([list(tokens)], device=self.device)
            ids = inputs["input_ids"]
            for name, values in asked.inputs.items():
                if isinstance(values, Tensor) and values.shape == ids.shape and name != "input_ids":
                    fill = torch.full_like(more, 1 if name == "attention_mask" else self._type)
                    inputs[name] = torch.cat([values, fill.to(values.dtype)], 1)
            inputs["input_ids"] = torch.cat([ids, more], 1)
        keep = by_prefix and self._prefixes and asked.encoded.kept
        prefix, stop = asked.encoded.prefix if keep else None, int(asked.image[-1]) + 1
        if prefix and torch.equal(prefix.ids, inputs["input_ids"][0, :stop]):
            return self._read_behind(prefix, inputs["input_ids"], len(tokens), use_cache=use_cache)
        if self._takes_encoded:
            if not asked.encoded.outputs:
                asked.encoded.outputs["image"] = self._encode(asked)
            del inputs["pixel_values"]
            inputs["mm_encoder_outputs"] = dict(asked.encoded.outputs)
        with self._last_hidden(len(tokens) + 1) as seen:
            output = self.model(**inputs, use_cache=use_cache or keep)
        hidden = seen[0][0]
        past = getattr(output, self._cache, None)
        if keep and (cache := first_of(past, stop)):
            first = inputs["input_ids"][0, :stop]
            asked.encoded.prefix = Prefix(first, cache, hidden[:stop], self.turns)
        return Read(hidden, output.logits[0].float()), past

    def _read_behind(
        self, prefix: Prefix, ids: Tensor, answered: int, *, use_cache: bool
    ) -> tuple[Read, Any]:
        """Read the tokens after those of a prefix; the last of them belong to the answer. There is
        no attention mask, because one photo and question have no padding."""
        self.turns = prefix.turns
        with self._last_hidden(answered + 1) as seen:
            output = self.model(
                input_ids=ids[:, len(prefix.ids) :],
                use_cache=use_cache,
                **{self._cache: prefix.cache()},
            )
        hidden = torch.cat([prefix.hidden, seen[0][0]])
        return Read(hidden, output.logits[0].float()), getattr(output, self._cache, None)

    def read_on(self, token: int, past: Any) -> tuple[Read, Any]:
        """Read one more token behind what is in the cache `past`. Return also the cache."""
        ids = torch.tensor([[token]], device=self.device)
        with self._last_hidden(1) as seen:
            output = self.model(input_ids=ids, use_cache=True, **{self._cache: past})
        return Read(seen[0][0], output.logits[0, -1:].float()), getattr(output, self._cache)

    @property
    def turns(self) -> Any:
        """What the model keeps between the passes of one answer besides the cache: the offset of
        positions behind a photo (Qwen-VL). Answers that take turns must set it back."""
        return getattr(self.model.base_model, "rope_deltas", None)

    @turns.setter
    def turns(self, kept: Any) -> None:
        if hasattr(self.model.base_model, "rope_deltas"):
            self.model.base_model.rope_deltas = kept

    def bytes_of(self, tokens: int, *, graded: int = 0, attended: int = 0) -> int:
        """Return the bytes that the cache and the hidden states of an answer take.

        Args:
            graded: number of blocks whose states are kept for gradients: about eight numbers for
                each of a hidden state, and four for each of the inner layer.
            attended: number of blocks whose attention is materialised: scores, weights, gradient.
        """
        text = self.model.config.get_text_config()
        # The blocks of Gemma 4 have heads of different sizes.
        blocks = list(getattr(text, "per_layer_config", [text] * text.num_hidden_layers))
        cache, inner, heads = 0, 0, 0
        for block in blocks:
            own = getattr(block, "num_key_value_heads", None) or block.num_attention_heads
            wide = getattr(block, "head_dim", None) or text.hidden_size // block.num_attention_heads
            cache += 2 * own * wide
            inner = max(inner, getattr(block, "intermediate_size", None) or 4 * text.hidden_size)
            heads = max(heads, block.num_attention_heads)
        states = graded * (8 * text.hidden_size + 4 * inner)
        attention = attended * 3 * heads * tokens
        each = (cache + states + attention) * self.dtype.itemsize
        return int(tokens * (each + 4 * text.hidden_size))

    @torch.no_grad()
    def check(self) -> None:
        """Check on a picture of noise that image tokens lie where they are expected, that logits
        come from the last hidden states, and that an answer is the one that the model's own
        `generate` gives.

        Raises:
            ModelError: if something is not so.
        """
        rng = np.random.default_rng(0)
        small = rng.integers(0, 256, (TRIAL[0] // 4, TRIAL[1] // 4, 3), np.uint8)
        photo = small.repeat(4, 0).repeat(4, 1)
        asked = self.ask(photo, "a")
        self._check_places(asked, rng)
        read, past = self.read(asked, use_cache=True)
        self._check_head(read)
        turns = self.turns
        self._prefixes = self._check_prefix(asked, read)
        self.turns = turns
        steps = [read.logits[-1]]
        said = [int(steps[0].argmax())]
        while len(said) < TRIAL_TOKENS and said[-1] not in self.ends:
            read, past = self.read_on(said[-1], past)
            steps.append(read.logits[-1])
            said.append(int(steps[-1].argmax()))
        generated = self._generated(asked)
        theirs = generated[0, -len(said) :].tolist()
        if theirs != said:
            raise ModelError(
                f"the {type(self.model).__name__} continues with other tokens ({said}) than its "
                f"own generate ({theirs})"
            )
        # Of PaliGemma, tokens of type 1 see only those before them; of Gemma 3, those of type 1 are
        # image tokens.
        for self._type in (0, 1):
            forced = self.read(asked, said[:-1])[0].logits
            stepped = torch.stack(steps)
            if torch.allclose(forced, stepped, rtol=1e-2, atol=1e-2 * float(stepped.std())):
                return
        raise ModelError(
            f"the {type(self.model).__name__} reads a given answer differently from one "
            "that it says itself"
        )

    def _check_prefix(self, asked: Asked, read: Read) -> bool:
        """Return whether the model makes the same of a photo whichever question follows, and of a
        question the same if it reads it behind what is kept of the photo."""
        other = self.ask(asked.photo, "a a")
        ids, stop = other.inputs["input_ids"], int(other.image[-1]) + 1
        if not torch.equal(ids[0, :stop], asked.inputs["input_ids"][0, :stop]):
            return False
        whole, past = self.read(other, use_cache=True)
        cache = first_of(past, stop)
        near = torch.finfo(self.dtype).eps ** 0.5 * float(whole.hidden.std())
        if cache is None or not torch.allclose(
            read.hidden[:stop], whole.hidden[:stop], rtol=0, atol=near
        ):
            return False
        prefix = Prefix(ids[0, :stop], cache, read.hidden[:stop], self.turns)
        try:
            behind, _ = self._read_behind(prefix, ids, 0, use_cache=False)
        except Exception:  # its forward may want more than tokens behind a cache
            return False
        return bool(torch.allclose(behind.hidden, whole.hidden, rtol=0, atol=near))

    def _generated(self, asked: Asked) -> Tensor:
        """Return the tokens of the model's own `generate`, at each step the most probable one. The
        model's settings may penalise repetitions, so others stand in for them."""
        own = self.model.generation_config
        self.model.generation_config = type(own)(
            max_new_tokens=TRIAL_TOKENS,
            do_sample=False,
            eos_token_id=sorted(self.ends) or None,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        try:
            made: Tensor = self.model.generate(**asked.inputs)
        finally:
            self.model.generation_config = own
        return made

    def _check_head(self, read: Read) -> None:
        made = self.head(read.hidden[-1].to(self.dtype)).float()
        logits, cap = (
            read.logits[-1],
            getattr(self.model.config.get_text_config(), "final_logit_softcapping", None),
        )
        if cap:
            made = cap * torch.tanh(made / cap)
        scale = float((made @ logits) / (made @ made).clamp(min=1e-12))
        if not torch.allclose(scale * made, logits, rtol=1e-2, atol=1e-2 * float(logits.std())):
            raise ModelError(
                f"the logits of a {type(self.model).__name__} are not its output embedding times "
                "its last hidden states, so image tokens have none"
            )

    def _check_places(self, asked: Asked, rng: np.random.Generator) -> None:
        photo, before = asked.photo, self._features(asked)
        found, (height, width) = 0, photo.shape[:2]
        for _ in range(MOVED):
            tile = asked.tiles[int(rng.integers(len(asked.tiles)))]
            row, column = (int(rng.integers(cells)) for cells in tile.tokens.shape)
            box = tile.token_box(row, column)
            rows = slice(max(round(box.top * height), 0), max(round(box.bottom * height), 0))
            columns = slice(max(round(box.left * width), 0), max(round(box.right * width), 0))
            if not photo[rows, columns].size:  # the token lies in a padded border
                found += 1
                continue
            moved = torch.zeros(tile.tokens.size)
            for colour in COLOURS:
                changed = photo.copy()
                changed[rows, columns] = colour
                after = self._features(self.with_photo(asked, changed))
                change = (after - before).norm(dim=1) / before.norm(dim=1).clamp(min=1e-6)
                moved += change[torch.from_numpy(tile.tokens.flatten())]
            most = np.unravel_index(int(moved.argmax()), tile.tokens.shape)
            found += int(np.abs(np.subtract(most, (row, column))).max() <= 1)
        if found < ENOUGH:
            raise ModelError(
                f"changes of the picture change other image tokens of the "
                f"{type(self.model).__name__} than those at the place of the change "
                f"({found} of {MOVED} are right), so maps would be at the wrong place"
            )

    @torch.no_grad()
    def _encode(self, asked: Asked) -> Any:
        """Return what the image encoder makes of the photo."""
        known = inspect.signature(self.model.get_image_features).parameters
        given = {name: value for name, value in asked.inputs.items() if name in known}
        return self.model.get_image_features(**given)

    def _features(self, asked: Asked) -> Tensor:
        """Return the embeddings of the image tokens, float32 (N, D) on the CPU."""
        found = self._encode(asked)
        found = getattr(found, "pooler_output", found)
        parts = [found] if isinstance(found, Tensor) else list(found)
        features = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
        if len(features) != len(asked.image):
            raise ModelError(
                f"the model makes {counted(len(features), 'embedding')} of a photo that has "
                f"{counted(len(asked.image), 'image token')}"
            )
        if not features.isfinite().all():
            raise ModelError("the embeddings that the model makes of a photo are not finite")
        return features.float().cpu()

    def _prompt(self, question: str) -> str:
        if getattr(self.processor, "chat_template", None):
            content = [{"type": "image"}, {"type": "text", "text": question}]
            text: str = self.processor.apply_chat_template(
                [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
            )
            return text
        token = getattr(self.processor, "image_token", None)
        if token is None:
            token = self.tokenizer.convert_ids_to_tokens(self.image_token)
        return f"{token}{question}"

    def _processed(self, photo: Photo, text: str) -> dict[str, Any]:
        # torch refuses views that run backwards, and warns of arrays that cannot be written to.
        photo = np.require(photo, requirements=("C", "W"))
        try:
            inputs = self.processor(images=[photo], text=[text], return_tensors="pt")
        except Exception as error:  # processors may raise anything about a photo
            height, width = photo.shape[:2]
            raise ModelError(
                f"the model's processor takes no photo of {width} × {height} pixels with this "
                f"question: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            ) from error
        made: dict[str, Any] = {}
        for name, values in inputs.items():
            if name == "labels":  # PaliGemma's, for training
                continue
            if isinstance(values, Tensor):
                to = self.dtype if values.is_floating_point() else None
                values = values.to(self.device, to)
            made[name] = values
        return made

    @contextmanager
    def _last_hidden(self, logits: int) -> Iterator[list[Tensor]]:
        """Collect the last hidden states (1, n, D) of passes within the block, and let logits be
        made of the last `logits` of them. The argument `logits_to_keep` would let Gemma 4 leave out
        the other hidden states, too."""
        seen: list[Tensor] = []

        def note(module: nn.Module, given: object, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state
            seen.append(hidden.float())

        def last(module: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
            return given[0][..., -logits:, :]

        with ExitStack() as scope:
            scope.callback(self.model.base_model.register_forward_hook(note).remove)
            scope.callback(self.head.register_forward_pre_hook(last).remove)
            yield seen
