"""Nodes for ComfyUI that draw on a server of this project.

Copy or link this folder into ComfyUI's `custom_nodes`, and start ComfyUI again. The environment
variable SDXL_SERVER_KEY holds an API key, if the server asks for one: a workflow, which every
picture of ComfyUI contains, is no place for it.
"""

from .nodes import AddServerControl, AddServerLora, DrawOnServer

NODE_CLASS_MAPPINGS = {
    "DrawOnServer": DrawOnServer,
    "AddServerLora": AddServerLora,
    "AddServerControl": AddServerControl,
}
NODE_DISPLAY_NAME_MAPPINGS = {
    "DrawOnServer": "Draw on SDXL server",
    "AddServerLora": "Add LoRA of SDXL server",
    "AddServerControl": "Add ControlNet of SDXL server",
}

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
