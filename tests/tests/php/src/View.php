<?php
final class View
{
    public static function render(string $name, array $values): string
    {
        $content = self::part($name, $values);
        return self::part('layout', ['title' => $values['title'], 'content' => $content]);
    }

    private static function part(string $template, array $values): string
    {
        extract($values);
        ob_start();
        require __DIR__ . "/../views/$template.php";
        return ob_get_clean();
    }
}
