<?php
final class Request
{
    public function __construct(
        public readonly string $method,
        public readonly string $path,
        public readonly array $query,
        public readonly array $form,
        public readonly array $files,
    ) {
    }

    public static function current(): self
    {
        $path = parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH) ?: '/';
        return new self($_SERVER['REQUEST_METHOD'], rawurldecode($path), $_GET, $_POST, $_FILES);
    }
}
