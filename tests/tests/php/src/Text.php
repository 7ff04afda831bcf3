<?php
final class Text
{
    public static function safe(string $text): string
    {
        return htmlspecialchars($text, ENT_QUOTES);
    }
}
