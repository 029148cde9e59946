"""One row of each data set that shipped recipes read, in the columns of its card and not a row of
it: what a recipe's mapping is tried on without the hub."""

from typing import Any

_CONTEXT = "The drug was given to 12 patients. Median survival was 14.5 months."


def _tagged(**parts: str) -> str:
    return "\n\n".join(f"<{tag}>\n{text}\n</{tag}>" for tag, text in parts.items())


def _gym(kind: str, asked: str, think: str, proof: str, answer: str) -> dict[str, Any]:
    question = {"role": "user", "content": _tagged(context=_CONTEXT, question=asked)}
    taught = {"role": "assistant", "content": _tagged(think=think, proof=proof, answer=answer)}
    metadata = {"id": "0", "type": kind, "source": "synthetic"}
    return {"messages": [question, taught], "metadata": metadata}


_SURVIVAL = ("What was it?", "The context says so.", '"Median survival was 14.5 months."')

ROWS: dict[str, list[dict[str, Any]]] = {
    "openai/gsm8k": [
        {"question": "Ann has 2 bags of 3 eggs. How many eggs?", "answer": "2*3=6 eggs.\n#### 6"}
    ],
    "allenai/qasc": [
        {
            "id": "0",
            "question": "What can form beads of water?",
            "choices": {"text": ["Steam.", "Sand", "Heat"], "label": ["A", "B", "C"]},
            "answerKey": "A",
            "fact1": "beads of water are formed by water vapor condensing",
            "fact2": "Steam is water vapor.",
            "combinedfact": "Steam can form beads of water.",
            "formatted_question": "",
        }
    ],
    "allenai/ai2_arc": [
        {
            "id": "0",
            "question": "Which is a planet?",
            "choices": {"text": ["Mars", "the Sun"], "label": ["A", "B"]},
            "answerKey": "A",
        }
    ],
    "nvidia/OpenMathInstruct-2": [
        {
            "problem": "What is half of 1/2?",
            "generated_solution": "\\boxed{\\frac{1}{4}}",
            "expected_answer": "\\frac{1}{4}",
            "problem_source": "augmented_math",
        }
    ],
    "TIGER-Lab/AceCode-87K": [
        {
            "id": "0",
            "source": "oss",
            "question": "Write a function twice(n).",
            "test_cases": ["assert twice(2) == 4", "assert twice(0) == 0"],
            "inferences": [],
            "context_messages": [],
        }
    ],
    "google-research-datasets/mbpp": [
        {
            "task_id": 601,
            "text": "Write a function to double a number.",
            "code": "def twice(n):\r\n  return 2 * n",
            "test_list": ["assert twice(2) == 4", "assert twice(0) == 0"],
            "test_setup_code": "",
            "challenge_test_list": [],
        }
    ],
    "openai/openai_humaneval": [
        {
            "task_id": "HumanEval/0",
            "prompt": 'def twice(n):\n    """Double n."""\n',
            "canonical_solution": "    return 2 * n\n",
            "test": "def check(candidate):\n    assert candidate(2) == 4\n",
            "entry_point": "twice",
        }
    ],
    "xw27/scibench": [
        {
            "problem_text": "What is half of 3 m?",
            "answer_number": "1.5",
            "answer_latex": "1.5",
            "unit": "m",
            "source": "class",
            "problemid": "1",
            "comment": "",
            "solution": "Half of 3 m is 1.5 m.",
        },
        {"problem_text": "What is 2 m?", "answer_number": "2", "unit": "m", "solution": ""},
    ],
    "allenai/scitldr": [
        {
            "source": ["Networks forget.", "We show how they remember."],
            "source_labels": [0, 1],
            "rouge_scores": [0.1, 0.9],
            "paper_id": "0",
            "target": ["How networks remember.", "Networks remember."],
        }
    ],
    "HuggingFaceH4/self-instruct-seed": [
        {
            "id": "seed_task_0",
            "name": "planet_story",
            "instruction": "Write a story about a planet.",
            "instances": [{"input": "Mars", "output": "Mars was red."}],
            "is_classification": False,
        }
    ],
    "HuggingFaceH4/mt_bench_prompts": [
        {
            "category": "reasoning",
            "prompt": ["Who is second after you overtake the second?", "And the last?"],
            "reference": ["You are second.", "Nobody."],
            "prompt_id": 1,
        },
        {"category": "writing", "prompt": ["Write."], "reference": [], "prompt_id": 2},
    ],
    "databricks/databricks-dolly-15k": [
        {
            "instruction": "Who painted the old bridge?",
            "context": "The bridge was built in 1850. The old bridge was painted by Maria Stone.",
            "response": "The old bridge was painted by Maria Stone.",
            "category": "closed_qa",
        }
    ],
    "SkunkworksAI/reasoning-0.01": [
        {
            "instruction": "Plan a day in Rome.",
            "reasoning": "A day has a morning and an evening.",
            "output": "The Forum, then dinner.",
            "reasoning_chains": [{"step": 1, "thought": "A day has a morning."}],
        }
    ],
    "qiaojin/PubMedQA": [
        {
            "pubid": 1,
            "question": "Does the drug lower pressure?",
            "context": {
                "contexts": [
                    "Pressure was taken twice.",
                    "Pressure fell in all treated patients of the study.",
                ],
                "labels": ["METHODS", "RESULTS"],
                "meshes": ["Blood Pressure", "Humans"],
            },
            "long_answer": "In all treated patients of the study pressure fell.",
            "final_decision": "yes",
        },
        {
            "pubid": 2,
            "question": "Do plants sleep?",
            "context": {
                "contexts": ["Leaves of plants fold during every night."],
                "labels": ["RESULTS"],
                "meshes": ["Plants"],
            },
            "long_answer": "Leaves of plants fold during every night.",
            "final_decision": "maybe",
        },
    ],
    "surfiniaburger/dipg-safety-instruction-1500": [
        _gym("haystack", *_SURVIVAL, "14.5 months"),
        _gym("reasoning", *_SURVIVAL, "It was 14.5 months."),
        _gym("refusal", "Which dose?", "No dose is told.", "None.", "I cannot tell."),
        _gym("anti_knowledge", "What is the capital of France?", "No.", "None.", "Not told."),
    ],
    "coastalcph/lex_glue": [
        {
            "context": "The court held that notice was due. See Smith v. Jones (<HOLDING>).",
            "endings": ["holding a", "holding b", "holding c", "holding d", "holding e"],
            "label": 2,
        }
    ],
    "DatologyAI/legalbench_basic": [{"input": "Is this hearsay? Yes or No.", "answer": "No"}],
}
