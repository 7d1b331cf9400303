"""The page's colours, sizes and fonts. It uses the system's fonts, so that none is fetched."""

from pathlib import Path

from gradio.themes import Base, colors, sizes

CSS = Path(__file__).parent / "static" / "page.css"

_SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")


def theme() -> Base:
    """Return a quiet theme: warm greys and one accent colour."""
    return Base(
        primary_hue=colors.indigo,
        secondary_hue=colors.indigo,
        neutral_hue=colors.stone,
        radius_size=sizes.radius_lg,
        text_size=sizes.text_lg,
        font=_SANS,
        font_mono=_MONO,
    ).set(
        body_background_fill="*neutral_50",
        body_background_fill_dark="*neutral_950",
        block_background_fill="white",
        block_background_fill_dark="*neutral_900",
        block_border_width="1px",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_400",
        block_title_text_color="*body_text_color",
        block_title_text_color_dark="*body_text_color",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_400",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
        link_text_color="*primary_700",
        link_text_color_dark="*primary_300",
        checkbox_border_color="*neutral_500",
        checkbox_border_color_dark="*neutral_400",
        block_shadow="none",
        block_shadow_dark="none",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
        button_primary_background_fill_hover_dark="*primary_700",
        button_primary_text_color="white",
        button_secondary_background_fill="*block_background_fill",
        button_secondary_background_fill_dark="*block_background_fill",
        button_secondary_background_fill_hover="*neutral_100",
        button_secondary_background_fill_hover_dark="*neutral_800",
        button_secondary_border_color="*neutral_300",
        button_secondary_border_color_dark="*neutral_700",
        button_border_width="1px",
        button_large_padding="12px 20px",
    )
